"""Modes named as on the command line, and the records that they name."""

import pytest
from builders import measured

from fp8bench.records.named import Reference, candidates, of_mode, parse_mode
from fp8bench.records.results import Kept
from fp8bench.records.select import Filter
from fp8bench.schema.errors import UsageError

SMALL, LARGE, OTHER = (
    measured("mine", "te-fp8", "delayed", run_id="small"),
    measured("mine", "te-fp8", "current", run_id="large", settings={"batch_size": 128}),
    measured("yours", "te-bf16", run_id="other"),
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("te-fp8", ["small", "large"]),
        ("te-fp8:current", ["large"]),
        ("mine:te-fp8:delayed", ["small"]),
        ("yours:te-fp8", []),
        ("yours:te-bf16", ["other"]),
    ],
)
def test_a_mode_without_its_recipe_takes_any(text, found, tmp_path):
    kept = [Kept(record, tmp_path) for record in (SMALL, LARGE, OTHER)]

    assert [one.record.run_id for one in of_mode(parse_mode(text, {"mine", "yours"}), kept)] == found


def test_of_a_mode_those_of_a_variant_a_batch_size_or_the_same_work_are_taken():
    records, reference = [SMALL, LARGE], Reference("", "te-fp8")

    assert candidates("te-fp8", records, reference, Filter(batch_size=128), Filter()) == [LARGE]
    for like, found in ((Filter(batch_size=64, world_size=8), [SMALL]), (Filter(workload="another"), records)):
        assert candidates("te-fp8", records, reference, Filter(), like) == found
    assert candidates("te-fp8", records, Reference("", "te-fp8", "graphed"), Filter(), Filter()) == []
    with pytest.raises(UsageError, match=r"no record at batch size 7. It has: vit-huge at batch size 64 with sgd; vit"):
        candidates("te-fp8", records, reference, Filter(batch_size=7), Filter())
