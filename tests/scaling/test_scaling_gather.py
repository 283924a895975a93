"""Which records are shown: of one workload, each with its like; a table wherever one row can be shown."""

import pytest
from builders import fingerprint, published, unsupported
from scaling.made_scaling import gathered, in_pieces, nodes_of, points_of, series

from fp8bench.schema.errors import UsageError


def test_the_workload_that_most_instances_have_and_of_those_that_of_most_sizes_is_shown():
    found = gathered(published("p5"), figures=[series(workload="llm-1b")])
    assert (found.workload, {one.workload for one in points_of(found)}) == ("llm-1b", {"llm-1b"})
    assert "also there: vit-huge (--workload)" in found.notes
    both = [published("p5"), published("p4d")]
    assert gathered(*both, figures=[series()], instances=("p5", "p4d")).workload == "vit-huge"


def test_an_unknown_workload_has_its_nearest_even_among_names_that_only_records_have():
    with pytest.raises(UsageError, match="unknown workload 'llm-1'") as refused:
        gathered(figures=[series()], workload="llm-1")
    assert "'llm-1b'" in refused.value.remedy


def test_a_workload_of_the_registry_without_a_record_is_no_unknown_one():
    with pytest.raises(UsageError, match="no record for p5 of vit-micro"):
        gathered(figures=[series()], workload="vit-micro")


@pytest.mark.parametrize(
    ("figures", "options"),
    [((), {}), ([series()], {"batch_size": 64}), ([series()], {"grad_accumulation": 4})],
    ids=["nothing", "published throughput says no batch size", "nor micro-batches"],
)
def test_no_record_at_all_is_one_line(figures, options):
    with pytest.raises(UsageError, match="no record for p5"):
        gathered(figures=figures, **options)


def test_one_size_only_is_shown_without_a_share():
    (point,) = points_of(gathered(*nodes_of(1, 0.1, 0.1)))
    assert (point.share_of_smallest, point.world_size) == (None, 8)


def test_unlike_work_stands_side_by_side_and_is_compared_on_request_alone():
    records = [*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.1, 0.1, fingerprint=fingerprint(optimizer="adam"))]
    assert [one.share_of_smallest for one in points_of(gathered(*records))] == [None, None]
    assert [one.share_of_smallest for one in points_of(gathered(*records, allow_mismatch=True))] == [None, 1.0]


def test_unlike_micro_batches_are_series_of_their_own():
    records = [*in_pieces(1, 1, 2), *in_pieces(4, 1, 2)]
    points = points_of(gathered(*records))
    assert [(one.grad_accumulation, one.share_of_smallest is None) for one in points] == [
        (1, True), (1, False), (4, True), (4, False)
    ]  # fmt: skip
    assert {one.grad_accumulation for one in points_of(gathered(*records, grad_accumulation=4))} == {4}


def test_what_did_not_run_and_who_has_no_record_is_named():
    stopped = unsupported(settings={"world_size": 16, "nodes": 2}, minutes=99)
    found = gathered(*nodes_of(1, 0.1, 0.1), stopped, instances=("p5", "p4d"))
    assert "omitted: p5:te-fp8 is unsupported" in found.notes
    assert "no record of vit-huge for p4d" in found.notes
