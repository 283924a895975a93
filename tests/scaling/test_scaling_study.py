"""Scaling: which records are shown, each with its like, in which numbers, and how."""

import json
import re
from datetime import date

import pytest
from builders import emulated, environment, fingerprint, machine_called, measured_on_cpu, published, unsupported
from scaling.made_scaling import CATALOG, gathered, in_pieces, nodes_of, series, sized

from fp8bench.scaling.document import document
from fp8bench.scaling.projected import Projections, projections
from fp8bench.schema.errors import UsageError
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
    for value, ends in (
        (point.units_per_s_per_gpu, point.units_per_s_per_gpu_ci),
        (point.share_of_smallest, point.share_of_smallest_ci),
        (point.faster_vs_reference, point.faster_vs_reference_ci),
        (point.usd_per_billion_units, point.usd_per_billion_units_ci),
    ):
        assert ends[0] < value < ends[1]
    # Measured rows are priced today: 50 USD an hour and node.
    assert point.usd_per_billion_units == pytest.approx(100 / 3600 / (16 * 64 / 0.091) * 1e9, rel=1e-3)


def test_other_software_or_another_machine_than_the_smallests_is_marked():
    other = environment(versions={"torch": "2.15.0"})
    found = gathered(*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.11, 0.11, environment=other))
    assert ["unlike 8 GPUs in torch" in one.marks for one in found.points] == [False, True]

    def on(machine, *shape, **mode):
        return nodes_of(*shape, machine=machine_called(machine), **mode)

    records = [*on("a", 1, 0.1, 0.1), *on("a", 1, 0.08, 0.08, mode="te-bf16"), *on("b", 1, 0.07, 0.07, mode="te-fp8")]
    found = gathered(*records, *on("a", 2, 0.11, 0.11), *on("b", 2, 0.09, 0.09, mode="te-bf16"))
    marks = [[mark.partition(": ")[0] for mark in one.marks if "machine" in mark] for one in found.points]
    size, mode = (f"on another machine than {name}" for name in ("8 GPUs", "baseline-bf16/eager"))
    assert marks == [[], [], [mode], [], [size, mode]]


def test_an_emulation_is_neither_faster_nor_priced():
    def of(make, minutes):
        sizes = ({"world_size": size} for size in (1, 2))
        return [make(instance="p5", settings=one, minutes=minutes + place) for place, one in enumerate(sizes)]

    def fake(**given):
        record = emulated(**given)
        return record.model_copy(update={"config": record.config.model_copy(update={"mode": "torchao-float8"})})

    shown = gathered(*of(measured_on_cpu, 0), *of(fake, 9))
    made_up = [one for one in shown.points if one.emulated]
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
    assert "also there: vit-huge (--workload)" in found.notes
    both = [published("p5"), published("p4d")]
    assert gathered(*both, figures=[series()], instances=("p5", "p4d")).workload == "vit-huge"


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
    assert "micro-batches" in shown(gathered(*records)).splitlines()[1]
    assert "micro-batch" not in shown(gathered(*in_pieces(4, 1, 2)))


def test_what_did_not_run_and_who_has_no_record_is_named():
    stopped = unsupported(settings={"world_size": 16, "nodes": 2}, minutes=99)
    found = gathered(*nodes_of(1, 0.1, 0.1), stopped, instances=("p5", "p4d"))
    assert "omitted: p5:te-fp8 is unsupported" in found.notes
    assert "no record of vit-huge for p4d" in found.notes


FAR = sized(*nodes_of(1, 0.1, 0.1), *nodes_of(1, 0.08, 0.08, mode="te-fp8", recipe="delayed"))


def shown(found, ahead=None, form=PIPE):
    return render(document(found, ahead or Projections()), form)


def ahead_of(found, *nodes):
    return projections(found.points, nodes, None, [], CATALOG)


def test_a_projection_stands_apart_with_its_warning_and_machines_find_it_apart_too():
    found = gathered(*FAR)
    table, _, projected = shown(found, ahead_of(found, 2, 4)).partition("Projected, and not measured")
    assert "4 x 8" not in table
    assert re.search(r"^4 x 8 +baseline-bf16", projected, re.MULTILINE)
    assert "no profile saw communication: a range" in projected
    data = json.loads(shown(found, ahead_of(found, 2), "json"))
    assert {one["nodes"] for one in data["points"]} == {1}
    assert {(one["nodes"], one["status"]) for one in data["projected"]} == {(2, "projected")}
    assert len(shown(found, ahead_of(found, 2), "csv").splitlines()) == 1 + len(data["points"])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_it_is_drawn(tmp_path, suffix):
    found = gathered(*FAR)
    path = tmp_path / f"scaling.{suffix}"
    document(found, ahead_of(found, 2)).figure("scaling").draw(path)
    assert path.stat().st_size > 1000
    if suffix == "svg":
        text = path.read_text()
        assert "projected (broken lines)" in text
        assert "stroke-dasharray" in text


def test_a_cpu_has_processes_and_a_row_without_an_interval_says_why():
    on_cpu = [measured_on_cpu(settings={"workload": "vit-micro", "world_size": size}, minutes=size) for size in (1, 2)]
    text = shown(gathered(*on_cpu, instances=("cpu",)))
    assert text.startswith("Throughput of vit-micro on nodes x processes: images/s a process")
    assert "GPU" not in text
    assert "one process." in text
    assert "one process." not in shown(gathered(*nodes_of(1, 0.100, 0.101), *nodes_of(2, 0.110, 0.111)))
