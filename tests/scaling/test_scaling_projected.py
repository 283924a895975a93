"""More nodes than were measured: what the ring sends, what stays hidden, what is assumed, and how far off it is."""

import builders
import pytest
from kinds.made_collectives import collectives_record
from scaling.made_scaling import CATALOG, gathered, nodes_of, series, sized

from fp8bench.pricing.catalog import load
from fp8bench.records.results import read_kind
from fp8bench.records.select import select
from fp8bench.scaling.projected import MOST_NODES, OneNode, links_of, one_node, over_nodes, projections, sent_of
from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.schema.throughput import ThroughputRecord
from fp8bench.stats.steps import step_times

FAST = OneNode(step_s=1.0, gpus=8, gradient_bytes=40e9, within=400.0, between=1000.0)
SLOW_NETWORK = FAST._replace(between=100.0)
HOPELESS = FAST._replace(between=10.0)


def of_one_node(**changes):
    return sized(*nodes_of(1, 0.1, 0.1), **changes)


def projected(*records, nodes=(2,), catalog=CATALOG, gbps=None, collectives=(), **of):
    return projections(gathered(*records, catalog=catalog, **of).points, nodes, gbps, collectives, catalog)


def of(point):
    return point.instance, point.gpu, point.world_size


def gradient_bytes_of(records):
    (point,) = gathered(*records).points
    return one_node(point.measurement, point.gpu, None, (), CATALOG)[0].gradient_bytes


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
    for row, known in (
        (projected(*of_one_node()).rows[0], False),
        (projected(*of_one_node(profile=profile)).rows[0], True),
    ):
        assert (row.nodes, row.world_size, row.status) == (2, 16, "projected")
        low, high = row.share_of_one_node
        assert (low == high < 1) if known else (low < high == 1)
        assert (row.usd_per_billion_units[0] == row.usd_per_billion_units[1]) == known


def test_gradients_follow_from_the_models_operations():
    records = of_one_node()
    assert gradient_bytes_of(records) == pytest.approx(4 * 632e6 * 196 / 197)
    of_tokens = builders.summary(0.1, 65_536, unit="tokens", flops_per_step=6 * 10**9 * 65_536)
    assert gradient_bytes_of([one.model_copy(update={"summary": of_tokens}) for one in records]) == pytest.approx(4e9)
    with pytest.raises(UsageError, match="does not say how many weights"):
        gradient_bytes_of(nodes_of(1, 0.1, 0.1))


def test_links_are_those_given_else_measured_with_the_largest_messages_else_of_the_catalogue():
    gradients = gradient_bytes_of(of_one_node())

    def slowest(*records, gbps=None):
        found = projected(*of_one_node(), collectives=records, gbps=gbps)
        return 2 * 15 / 16 * gradients / found.rows[0].ring_s / 1e9, " ".join(found.assumed)

    large = collectives_record(instance="p5", ranks=8, timed={("all-reduce", 2**30): 2**30 * 1.75 / 100e9})
    small = collectives_record(instance="p5", timed={("all-reduce", 1024): 2e-5}, minutes=60)
    between = collectives_record(ranks=16, nodes=2, timed={("all-reduce", 2**30): 2**30 * 1.875 / 20e9})
    for records, gbps, link, said in (
        ((), None, 400, "450 GB/s, NVLink's datasheet: none were measured"),
        ((large, small), None, 100, "100 GB/s, as measured"),
        ((between,), None, 20, "20 GB/s a node, as measured"),
        ((between,), 80.0, 10, "10 GB/s a node, as given"),
    ):
        found, assumed = slowest(*records, gbps=gbps)
        assert found == pytest.approx(link)
        assert said in assumed


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
    assert found.rows == ()
    assert said in found.omitted[0]


def test_links_and_networks_that_nobody_knows_are_asked_for():
    (point,) = gathered(*nodes_of(1, 0.1, 0.1)).points
    with pytest.raises(UsageError, match="links between GPUs of p5 are not known"):
        links_of(*of(point), None, [], CATALOG.model_copy(update={"gpus": {}}))
    bare = CATALOG.instances["p5"].model_copy(update={"network": None})
    known = CATALOG.model_copy(update={"instances": {"p5": bare}})
    with pytest.raises(UsageError, match="network of p5 is not known") as refused:
        links_of(*of(point), None, [], known)
    assert "--network-gbps" in refused.value.remedy
    assert links_of(*of(point), 80.0, [], known)[1] == 10.0


def test_fsdp_gathers_weights_twice_a_micro_batch_and_scatters_gradients_once():
    assert sent_of(of_one_node()[-1]) == 2.0

    def sharded(micro_batches, **changes):
        evidence = builders.evidence(
            join="fsdp",
            parallel=ParallelEvidence(
                reason="requested", **{"gathered_dtype": "bfloat16", "reduced_dtype": "float32", **changes}
            ),
        )
        settings = {"grad_accumulation": micro_batches, "batch_size": 8}
        return builders.measured("p5", evidence=evidence, settings=settings)

    # In units of 4 bytes a weight: 2 bytes twice, and 4.
    assert sent_of(sharded(1, resharded_after_forward=True)) == pytest.approx(2.0)
    assert sent_of(sharded(4, resharded_after_forward=True)) == pytest.approx(5.0)
    assert sent_of(sharded(1, resharded_after_forward=False)) == pytest.approx(1.5)
    assert sent_of(sharded(1, resharded_after_forward=True, gathered_dtype="float8_e4m3fn")) == pytest.approx(1.5)
    assert SLOW_NETWORK._replace(sent=4.0).ring_s(2) == pytest.approx(2 * SLOW_NETWORK.ring_s(2))


def test_rows_of_more_gpus_are_whole_nodes_and_as_uncertain_as_their_range():
    kept = [one.model_copy(update={"step_times": step_times(one)}) for one in of_one_node()]
    (measured,) = select(kept, every=False)
    rows, omitted = over_nodes([measured], (8, 12, 16, 64, 128), [], CATALOG)
    assert [(one.latest.what.world_size, one.latest.what.nodes, one.origin) for one in rows] == [
        (16, 2, "predicted"),
        (64, 8, "predicted"),
    ]
    assert omitted == ["not projected: p5 has 8 GPUs, and a projection goes to 8 nodes. Give multiples of it up to 64"]
    node, _ = one_node(measured, CATALOG.instances["p5"].gpu, None, [], CATALOG)
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
        (point,) = (one for one in gathered(figures=[record], catalog=load()).points if one.nodes == 1)
        within, between, _ = links_of(*of(point), None, [], load())
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
