"""Scaling: which records are shown, each with its like, in which numbers, and how; and more nodes than were measured:
what the ring sends, what stays hidden, what is assumed, and how far off it is.
"""

import json
import re
from datetime import date

import builders
import pytest
from builders import emulated, environment, fingerprint, machine_called, measured_on_cpu, published, unsupported
from kinds.made_collectives import collectives_record
from scaling.made_scaling import CATALOG, H100, gathered, in_pieces, nodes_of, series, sized

from fp8bench.kinds.kind import View
from fp8bench.pricing.catalog import load
from fp8bench.records.results import read_kind
from fp8bench.records.select import select
from fp8bench.scaling.document import document
from fp8bench.scaling.projected import MOST_NODES, Network, OneNode, one_node, over_nodes, projections
from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.schema.record import ThroughputRecord
from fp8bench.stats.steps import step_times
from fp8bench.tables import document as doc
from fp8bench.tables.render import PIPE, render

STUDY = (
    series("baseline-bf16", {1: 9350, 2: 9400, 32: 7900}, {1: 6.595, 32: 6.523}),
    series("te-fp8", {1: 11000, 2: 10750, 32: 9700}, {1: 6.602, 32: 6.649}),
)


def point_of(found, mode, nodes):
    (point,) = (one for one in found.points if (one.mode, one.nodes) == (mode, nodes))
    return point


def test_a_published_series_is_computed_by_our_formulas():
    found = gathered(figures=STUDY)
    most = point_of(found, "te-fp8", 32)
    assert most.share_of_smallest == pytest.approx(9700 / 11000)
    assert most.faster_vs_reference == pytest.approx(9700 / 7900 - 1)
    # Today's price: 50 USD an hour and node. The source's day is named.
    assert most.usd_per_hour == pytest.approx(1600.0)
    assert most.usd_per_billion_units == pytest.approx(1600 / 3600 / (9700 * 256) * 1e9)
    assert "at the prices of the source's day: --price-as-of 2024-11-20" in found.notes
    then = gathered(figures=STUDY, as_of=date(2024, 11, 20))
    assert point_of(then, "te-fp8", 32).usd_per_hour == pytest.approx(3200.0)
    assert most.final_loss_vs_reference == pytest.approx(0.126)
    assert (most.units_per_s_per_gpu_ci, most.share_of_smallest_ci, most.faster_vs_reference_ci) == (None, None, None)


def test_rounds_give_intervals_to_rates_shares_gains_and_costs():
    records = [
        *nodes_of(1, 0.100, 0.101, 0.102),
        *nodes_of(2, 0.110, 0.111, 0.112),
        *nodes_of(1, 0.080, 0.081, 0.082, mode="te-fp8", recipe="delayed"),
        *nodes_of(2, 0.090, 0.091, 0.092, mode="te-fp8", recipe="delayed"),
    ]
    found = gathered(*records)
    point = point_of(found, "te-fp8", 2)
    assert (point.nodes, point.world_size, point.rounds, point.batch_size) == (2, 16, 3, 64)
    assert point.units_per_s_per_gpu == pytest.approx(64 / 0.091, rel=1e-3)
    assert point.share_of_smallest == pytest.approx(81 / 91, rel=1e-3)
    assert point.faster_vs_reference == pytest.approx(111 / 91 - 1, rel=1e-3)
    for name in ("units_per_s_per_gpu", "share_of_smallest", "faster_vs_reference", "usd_per_billion_units"):
        low, high = getattr(point, f"{name}_ci")
        assert low < getattr(point, name) < high
    # Measured rows are priced today: 50 USD an hour and node.
    assert point.usd_per_billion_units == pytest.approx(100 / 3600 / (16 * 64 / 0.091) * 1e9, rel=1e-3)


def test_the_fastest_baseline_of_a_size_is_its_reference():
    compiled = nodes_of(1, 0.11, 0.11, compiled=True, minutes=60)
    found = gathered(*nodes_of(1, 0.1, 0.1), *compiled)
    assert {one.execution: one.is_reference for one in found.points} == {"compiled": False, "eager": True}


def test_other_software_or_another_machine_than_the_smallests_is_marked():
    other = environment(versions={"torch": "2.15.0"})
    found = gathered(*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.11, 0.11, environment=other))
    assert ["unlike 8 GPUs in torch" in one.marks for one in found.points] == [False, True]

    def on(machine, *shape, **mode):
        return nodes_of(*shape, machine=machine_called(machine), **mode)

    records = [*on("a", 1, 0.1, 0.1), *on("a", 1, 0.08, 0.08, mode="te-bf16"), *on("b", 1, 0.07, 0.07, mode="te-fp8")]
    found = gathered(*records, *on("a", 2, 0.11, 0.11), *on("b", 2, 0.09, 0.09, mode="te-bf16"))
    marks = [[mark.partition(": ")[0] for mark in one.marks if "machine" in mark] for one in found.points]
    size, mode = (f"on another machine than {name}" for name in ("8 GPUs", "baseline-bf16"))
    assert marks == [[], [], [mode], [], [size, mode]]


def test_an_emulation_is_neither_faster_nor_priced():
    records = [
        make(instance="p5", settings={"world_size": size}, minutes=minutes + size)
        for make, minutes in ((measured_on_cpu, 0), (emulated, 9))
        for size in (1, 2)
    ]
    made_up = [one for one in gathered(*records).points if one.emulated]
    assert len(made_up) == 2
    assert all(one.faster_vs_reference is None and one.usd_per_billion_units is None for one in made_up)


def test_an_instance_without_a_price_says_why_and_measured_and_published_are_held_against_their_own():
    bare = CATALOG.model_copy(update={"instances": {"p5": CATALOG.instances["p5"].model_copy(update={"prices": ()})}})
    measured = [*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.2, 0.2)]
    found = gathered(*measured, figures=[series(workload="vit-huge", rates={1: 10, 2: 9})], catalog=bare)
    assert {one.usd_per_billion_units for one in found.points} == {None}
    assert any("no price" in mark for mark in found.points[0].marks)
    shares = {(one.source, one.nodes): one.share_of_smallest for one in found.points}
    assert (shares["measured", 2], shares["published", 2]) == (pytest.approx(0.5), pytest.approx(0.9))


def test_the_workload_that_most_instances_have_and_of_those_that_of_most_sizes_is_shown():
    found = gathered(published("p5"), figures=[series(workload="llm-1b")])
    assert (found.workload, {one.workload for one in found.points}) == ("llm-1b", {"llm-1b"})
    assert found.hint == "llm-1b; also measured: vit-huge (--workload)"
    both = [published("p5"), published("p4d")]
    assert gathered(*both, figures=[series()], instances=("p5", "p4d")).workload == "vit-huge"
    # As broad as each other: the one of most rows, as `compare` shows.
    of_one_size = series(workload="llm-1b", rates={1: 1000.0})
    assert gathered(published("p5"), published("p5", "te-fp8"), figures=[of_one_size]).workload == "vit-huge"


@pytest.mark.parametrize(
    ("figures", "options"),
    [((), {}), ([series()], {"batch_size": 64}), ([series()], {"grad_accumulation": 4})],
    ids=["nothing", "published throughput says no batch size", "nor micro-batches"],
)
def test_no_record_at_all_is_one_line(figures, options):
    with pytest.raises(UsageError, match="no record for p5"):
        gathered(figures=figures, **options)


def test_one_size_has_no_share_and_unlike_work_is_compared_on_request_alone():
    (point,) = gathered(*nodes_of(1, 0.1, 0.1)).points
    assert (point.share_of_smallest, point.world_size) == (None, 8)
    records = [*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.1, 0.1, fingerprint=fingerprint(optimizer="adam"))]
    assert [one.share_of_smallest for one in gathered(*records).points] == [None, None]
    assert [one.share_of_smallest for one in gathered(*records, allow_mismatch=True).points] == [None, 1.0]


def test_unlike_micro_batches_are_series_of_their_own_and_name_the_row():
    records = [*in_pieces(1, 1, 2), *in_pieces(4, 1, 2)]
    shares = [(one.grad_accumulation, one.share_of_smallest is None) for one in gathered(*records).points]
    assert shares == [(1, True), (1, False), (4, True), (4, False)]
    assert {one.grad_accumulation for one in gathered(*records, grad_accumulation=4).points} == {4}
    assert "baseline-bf16, 4 micro-batches " in shown(gathered(*records), wide=True)
    assert "micro-batch" not in shown(gathered(*in_pieces(4, 1, 2)))


def test_options_of_the_layer_are_no_other_number_of_nodes_and_every_divided_table_names_its_rows():
    both = [{}, {"te_switches": "split-qkv"}]
    records = [
        one
        for number, switched in enumerate(both)
        for one in nodes_of(1, 0.1, 0.1, mode="te-fp8", session_id=f"s{number}", minutes=10 * number, settings=switched)
    ]
    found = gathered(*records)
    assert [one.share_of_smallest for one in found.points] == [None, None]
    assert [name in shown(found) for name in ("te-fp8 ", "te-fp8+split-qkv ")] == [True, True]
    (table,) = (part for block in document(found).blocks for part in block if isinstance(part, doc.Table))
    assert "mode" in [cells.heading for cells in table.columns[: table.naming]]


def test_what_did_not_run_and_who_has_no_record_is_named():
    stopped = unsupported(settings={"world_size": 16, "nodes": 2}, minutes=99)
    found = gathered(*nodes_of(1, 0.1, 0.1), stopped, instances=("p5", "p4d"))
    assert "omitted: p5:te-fp8 is unsupported" in found.notes
    assert "no record of vit-huge for p4d" in found.notes


def test_a_table_fits_80_columns_has_three_notes_and_of_many_rows_those_of_several_sizes():
    records = [one for number in range(1, 11) for one in in_pieces(number, *((1,) if number > 7 else (1, 2)))]
    found = gathered(*records, figures=[series(workload="vit-huge")], instances=("p5", "p4d"))
    brief = render(document(found), PIPE).splitlines()
    assert max(len(line) for line in brief if line.startswith(" ")) <= 80
    assert "3 more rows, of one number of GPUs each: --wide" in brief
    assert brief[-1] == "1 more note: --notes"
    assert "more" not in shown(found, wide=True).partition("\n")[2]
    assert len(json.loads(shown(found, "json"))["points"]) == len(found.points) > 16


NETWORK, NODE = Network([], CATALOG), ("p5", H100.name, 8)
FAR = sized(*nodes_of(1, 0.1, 0.1), *nodes_of(1, 0.08, 0.08, mode="te-fp8", recipe="delayed"))


def shown(found, form=PIPE, **view):
    return render(document(found, View(notes=True, **view)), form)


def test_a_projection_stands_apart_with_its_warning_and_machines_find_it_apart_too():
    found = projections(gathered(*FAR), (2, 4), NETWORK)
    table, _, projected = shown(found).partition("Projected, and not measured")
    assert "4 x p5" not in table
    assert re.search(r"^ +32 +4 x p5 +baseline-bf16", projected, re.MULTILINE)
    assert "no profile saw communication: a range" in projected
    data = json.loads(shown(found, "json"))
    assert {one["nodes"] for one in data["points"]} == {1}
    assert {(one["nodes"], one["status"]) for one in data["projected"]} == {(2, "projected"), (4, "projected")}
    assert len(shown(found, "csv").splitlines()) == 1 + len(data["points"])


def test_a_cpu_has_processes_and_a_row_without_an_interval_says_why():
    on_cpu = [measured_on_cpu(settings={"workload": "vit-micro", "world_size": size}, minutes=size) for size in (1, 2)]
    text = shown(gathered(*on_cpu, instances=("cpu",)))
    assert text.startswith("vit-micro: what is left of a process's rate")
    assert "GPU" not in text
    assert "Every row: one process" in text
    assert "one process" not in shown(gathered(*nodes_of(1, 0.100, 0.101), *nodes_of(2, 0.110, 0.111)))


FAST = OneNode(step_s=1.0, gpus=8, gradient_bytes=40e9, within=400.0, between=1000.0)
SLOW_NETWORK = FAST._replace(between=100.0)
HOPELESS = FAST._replace(between=10.0)


def of_one_node(**changes):
    return sized(*nodes_of(1, 0.1, 0.1), **changes)


def projected(*records, **of):
    return projections(gathered(*records, **of), (2,), NETWORK)


def node_of(records):
    (point,) = gathered(*records).points
    return one_node(point.measurement, point.gpu, NETWORK)[0]


def test_a_ring_sends_twice_the_bytes_less_one_ranks_share_over_the_slowest_link():
    assert FAST.ring_s(1) == pytest.approx(2 * 7 / 8 * 40 / 400)
    assert FAST.ring_s(4) == pytest.approx(2 * 31 / 32 * 40 / 400)
    assert SLOW_NETWORK.ring_s(2) == pytest.approx(2 * 15 / 16 * 40 / 100)
    alone = SLOW_NETWORK._replace(gpus=1, within=0.0)
    assert (alone.ring_s(1), alone.ring_s(2)) == (0.0, pytest.approx(0.4))


def test_what_one_node_hid_stays_hidden_and_without_a_profile_it_is_a_range():
    node = SLOW_NETWORK._replace(nccl_s=0.2, exposed_s=0.05)
    all_s = 0.2 * node.ring_s(2) / node.ring_s(1)
    # Nearly a second of work hides three quarters of it.
    assert node.project(2) == pytest.approx((0.95 + 0.25 * all_s, 0.95 + 0.25 * all_s, all_s))
    _, most_s, all_s = HOPELESS._replace(nccl_s=0.5).project(2)
    assert most_s == pytest.approx(all_s)
    assert SLOW_NETWORK.project(2)[:2] == (FAST.step_s, pytest.approx(1.0 + 0.75 - 0.175))
    least_s, most_s, all_s = HOPELESS.project(2)
    assert least_s == pytest.approx(all_s)
    assert FAST.step_s < least_s <= most_s
    profile = builders.profile(by_category={"gemm_bf16": 0.09, "nccl": 0.005}, nccl_s=0.02)
    for changes, known in (({}, False), ({"profile": profile}, True)):
        (row,) = projected(*of_one_node(**changes)).projected
        assert (row.nodes, row.world_size, row.status) == (2, 16, "projected")
        low, high = row.share_of_one_node
        assert (low == high < 1) if known else (low < high == 1)
        assert (row.usd_per_billion_units[0] == row.usd_per_billion_units[1]) == known


LARGE = collectives_record(timed={("all-reduce", 2**30): 2**30 * 1.75 / 100e9})
SMALL = collectives_record(timed={("all-reduce", 1024): 2e-5}, minutes=60)
BETWEEN = collectives_record(ranks=16, nodes=2, timed={("all-reduce", 2**30): 2**30 * 1.875 / 20e9})


@pytest.mark.parametrize(
    ("records", "gbps", "links", "said"),
    [
        ([], None, (450, 400), "450 GB/s, NVLink's datasheet: none were measured"),
        ([LARGE, SMALL], None, (100, 400), "100 GB/s, as measured"),
        ([BETWEEN], None, (450, 20), "20 GB/s a node, as measured"),
        ([BETWEEN], 80.0, (450, 10), "10 GB/s a node, as given"),
    ],
)
def test_links_are_those_given_else_measured_with_the_largest_messages_else_of_the_catalogue(
    records, gbps, links, said
):
    *found, assumed = Network(records, CATALOG, gbps).links(*NODE)
    assert found == pytest.approx(links)
    assert said in " ".join(assumed)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (nodes_of(1, 0.1, 0.1), "does not say how many weights"),
        (nodes_of(2, 0.1, 0.1), "no record is of one node"),
        ([], "is published, without steps"),
    ],
)
def test_what_cannot_be_projected_says_why_beside_the_table(records, said):
    found = projected(*records, figures=[series(workload="vit-huge")] if not records else ())
    assert found.projected == ()
    assert said in found.notes[-1]


def test_links_and_networks_that_nobody_knows_are_asked_for():
    with pytest.raises(UsageError, match="links between GPUs of p5 are not known"):
        Network([], CATALOG.model_copy(update={"gpus": {}})).links(*NODE)
    bare = CATALOG.instances["p5"].model_copy(update={"network": None})
    known = CATALOG.model_copy(update={"instances": {"p5": bare}})
    with pytest.raises(UsageError, match="network of p5 is not known") as refused:
        Network([], known).links(*NODE)
    assert "--network-gbps" in refused.value.remedy
    assert Network([], known, 80.0).links(*NODE)[1] == 10.0


def test_fsdp_gathers_weights_twice_a_micro_batch_and_scatters_gradients_once():

    def sent(micro_batches, resharded=True, gathered_as="bfloat16"):
        of = {"gathered_dtype": gathered_as, "reduced_dtype": "float32", "resharded_after_forward": resharded}
        evidence = builders.evidence(join="fsdp", parallel=ParallelEvidence(reason="requested", **of))
        settings = {"grad_accumulation": micro_batches}
        return node_of(sized(*nodes_of(1, 0.1, 0.1, settings=settings), evidence=evidence)).sent

    assert node_of(of_one_node()).sent == 2.0
    # In units of 4 bytes a weight: 2 bytes twice, and 4.
    assert [sent(1), sent(4), sent(1, False), sent(1, gathered_as="float8_e4m3fn")] == [2.0, 5.0, 1.5, 1.5]
    assert SLOW_NETWORK._replace(sent=4.0).ring_s(2) == pytest.approx(2 * SLOW_NETWORK.ring_s(2))


def test_rows_of_more_gpus_are_whole_nodes_and_as_uncertain_as_their_range():
    kept = [one.model_copy(update={"step_times": step_times(one)}) for one in of_one_node()]
    (measured,) = select(kept, every=False)
    rows, omitted = over_nodes([measured], (8, 12, 16, 64, 128), NETWORK)
    assert [(one.latest.what.world_size, one.latest.what.nodes, one.origin) for one in rows] == [
        (16, 2, "predicted"),
        (64, 8, "predicted"),
    ]
    assert omitted == ["not projected: p5 has 8 GPUs, and a projection goes to 8 nodes. Give multiples of it up to 64"]
    node, _ = one_node(measured, H100.name, NETWORK)
    for row, nodes in zip(rows, (2, 8), strict=True):
        least_s, most_s, _ = node.project(nodes)
        step_s = row.latest.summary.step_time_s
        assert step_s / (1 + row.elsewhere) <= least_s <= step_s <= most_s <= step_s * (1 + row.elsewhere)
        assert row.latest.summary.units_per_step == nodes * measured.latest.summary.units_per_step
    assert len({one.latest.run_id for one in (*rows, measured)}) == 3


PARAMETERS = {"llm-1b": 1.2e9, "llm-7b": 6.7e9}


def off(tokens, nodes):
    """The most that a published rate lies outside the projection from one node, in points of one node's rate. tokens:
    of a GPU and step, which the source does not say."""
    worst = 0.0
    for record in read_kind((), ["p5"], ThroughputRecord):
        rates = {point.nodes: point.units_per_s_per_gpu for point in record.points}
        within, between, _ = Network([], load()).links(*NODE)
        node = OneNode(tokens / rates[1], 8, 4 * PARAMETERS[record.workload], within, between)
        least_s, most_s, _ = node.project(nodes)
        share, low, high = rates[nodes] / rates[1], node.step_s / most_s, node.step_s / least_s
        worst = max(worst, low - share, share - high)
    return worst * 100


@pytest.mark.parametrize(
    ("tokens", "points"),
    [
        (4096, {2: 2.0, 4: 2.9, 8: 2.5, 16: 6.9, 32: 11.8}),
        (8192, {2: 2.4, 4: 2.9, 8: 2.6, 16: 9.2, 32: 14.2}),
        (16384, {2: 3.3, 4: 2.9, 8: 3.8, 16: 10.4, 32: 15.4}),
    ],
)
def test_up_to_eight_nodes_published_rates_are_within_three_points_and_beyond_they_are_not(tokens, points):
    """At 16,384 tokens it is four."""
    assert len(read_kind((), ["p5"], ThroughputRecord)) == 4
    assert {nodes: round(off(tokens, nodes), 1) for nodes in points} == points
    assert max(points[nodes] for nodes in points if nodes <= MOST_NODES) < (3 if tokens < 16384 else 4)
