"""What a projection takes from records, and what it refuses."""

import builders
import pytest
from kinds.made_collectives import collectives_record
from scaling.made_scaling import CATALOG, gathered, nodes_of, series

from fp8bench.records import results
from fp8bench.scaling.projected import Wanted, gradient_bytes, projections, with_collectives
from fp8bench.schema.errors import UsageError

FLOPS = 6 * 632_000_000 * 196 * 64 * 8
"""Of eight GPUs' step of 64 images of 196 patches each, by a model of 632 M weights: without the class token."""


def of_one_node(**changes):
    made = nodes_of(1, 0.1, 0.1)
    return [
        one.model_copy(update={"summary": one.summary.model_copy(update={"flops_per_step": FLOPS}), **changes})
        for one in made
    ]


def projected(*records, nodes=(2,), catalog=CATALOG, **wanted):
    found = gathered(*records, one_size_will_do=True, catalog=catalog).found
    return projections(found, Wanted(nodes, **wanted), catalog)


def profile_with(nccl_s, exposed_s):
    return builders.profile(by_category={"gemm_bf16": 0.09, "nccl": exposed_s}, nccl_s=nccl_s)


def test_gradients_follow_from_the_models_operations():
    (record, _) = of_one_node()
    assert gradient_bytes(record) == pytest.approx(4 * 632e6 * 196 / 197)


def test_a_unit_of_tokens_is_a_token():
    (record, _) = of_one_node()
    of_tokens = builders.summary(0.1, 65_536, unit="tokens", flops_per_step=6 * 10**9 * 65_536)
    assert gradient_bytes(record.model_copy(update={"summary": of_tokens})) == pytest.approx(4e9)


def test_without_operations_it_is_refused():
    with pytest.raises(UsageError, match="does not say how many weights"):
        projected(*nodes_of(1, 0.1, 0.1))


def test_the_datasheets_links_are_said_to_be_that():
    found = projected(*of_one_node())
    (row,) = found.rows
    assert (row.nodes, row.world_size, row.status) == (2, 16, "projected")
    assert row.ring_s == pytest.approx(2 * 15 / 16 * gradient_bytes(of_one_node()[0]) / 400e9)
    assert any("450 GB/s, by the datasheet: none were measured" in text for text in found.assumed)
    low, high = row.share_of_one_node
    assert low < high == 1.0
    assert row.usd_per_billion_units[0] < row.usd_per_billion_units[1]


def test_measured_links_go_before_the_datasheet():
    record = collectives_record(instance="p5", ranks=8, timed={("all-reduce", 2**30): 2**30 * 1.75 / 100e9})
    found = projected(*of_one_node(), collectives={"p5": record})
    (row,) = found.rows
    assert row.ring_s > 2 * 15 / 16 * gradient_bytes(of_one_node()[0]) / 100e9
    assert any("100 GB/s of bus bandwidth" in text for text in found.assumed)
    assert projected(*of_one_node(), given=record).rows == found.rows


def test_measured_links_between_nodes_go_before_the_catalogue_and_after_what_was_given():
    record = collectives_record(ranks=16, nodes=2, timed={("all-reduce", 2**30): 2**30 * 1.875 / 20e9})
    gradients = gradient_bytes(of_one_node()[0])
    found = projected(*of_one_node(), between={"p5": record})
    (row,) = found.rows
    assert row.ring_s == pytest.approx(2 * 15 / 16 * gradients / 20e9)
    assert any(
        "20 GB/s of bus bandwidth, as 2 nodes of p5 with 16 GPUs were measured" in text for text in found.assumed
    )
    assert projected(*of_one_node(), given=record).rows == found.rows

    (by_hand,) = projected(*of_one_node(), between={"p5": record}, network_gbps=80.0).rows
    assert by_hand.ring_s == pytest.approx(2 * 15 / 16 * gradients / 10e9)


def test_records_of_one_node_and_of_several_are_told_apart(tmp_path):
    within, between = collectives_record(), collectives_record(ranks=16, nodes=2, minutes=1)
    for record in (within, between):
        results.write(record, tmp_path)
    wanted = with_collectives((2,), None, None, ["p5"], tmp_path, lambda _broken: None)
    assert wanted.collectives["p5"].run_id == within.run_id
    assert wanted.between["p5"].run_id == between.run_id


def test_a_profile_that_saw_communication_gives_one_number():
    found = projected(*of_one_node(profile=profile_with(0.02, 0.005)))
    (row,) = found.rows
    assert row.share_of_one_node[0] == row.share_of_one_node[1] < 1
    assert any("75 % of communication stays hidden" in text for text in found.assumed)


def test_a_network_that_nobody_knows_is_asked_for():
    bare = CATALOG.model_copy(
        update={"instances": {"p5": CATALOG.instances["p5"].model_copy(update={"network": None})}}
    )
    with pytest.raises(UsageError, match="network of p5 is not known") as refused:
        projected(*of_one_node(), catalog=bare)
    assert "--network-gbps" in refused.value.remedy
    (row,) = projected(*of_one_node(), catalog=bare, network_gbps=80.0).rows
    assert row.ring_s == pytest.approx(2 * 15 / 16 * gradient_bytes(of_one_node()[0]) / 10e9)


def test_links_that_nobody_knows_are_to_be_measured():
    bare = CATALOG.model_copy(update={"gpus": {}})
    with pytest.raises(UsageError, match="links between GPUs of p5 are not known") as refused:
        projected(*of_one_node(), catalog=bare)
    assert "fp8bench collectives" in refused.value.remedy


def test_a_published_figure_has_no_steps_to_project():
    found = gathered(figures=[series()]).found
    with pytest.raises(UsageError, match="without the steps that are needed"):
        projections(found, Wanted((4,)), CATALOG)


def test_several_nodes_alone_are_no_start():
    found = gathered(*nodes_of(2, 0.1, 0.1), *nodes_of(4, 0.1, 0.1)).found
    with pytest.raises(UsageError, match="no record is of one node"):
        projections(found, Wanted((8,)), CATALOG)


def test_a_record_of_collectives_without_an_all_reduce_is_refused():
    record = collectives_record(instance="p5", ranks=8, timed={("all-gather", 2**30): 0.01})
    with pytest.raises(UsageError, match="timed no all-reduce"):
        projected(*of_one_node(), given=record)


def test_the_record_whose_messages_are_largest_is_taken(tmp_path):
    large = collectives_record(instance="p5", timed={("all-reduce", 2**30): 4e-3})
    small = collectives_record(instance="p5", timed={("all-reduce", 1024): 2e-5}, minutes=60)
    for record in (large, small):
        results.write(record, tmp_path)
    wanted = with_collectives((2,), None, None, ["p5"], tmp_path, lambda _broken: None)
    assert wanted.of("p5") == large
    named = with_collectives((2,), None, small.run_id, ["p5"], tmp_path, lambda _broken: None)
    assert named.of("p5") == small
    said = projected(*of_one_node(), given=small).assumed
    assert any("no large all-reduce was timed" in text for text in said)
    assert not any("no large" in text for text in projected(*of_one_node(), given=large).assumed)
