"""Which row is the reference, which rows there are, and their order."""

import pytest
from builders import evidence, fingerprint, invalid, measured, measured_on_cpu, replayed, rounds, unsupported
from report.comparing import NO_RELATIVES, RELATIVE_NUMBERS, compared, fp8, row_of, te_bf16

from fp8bench.records.select import rounds_of

THERE_ARE = {
    "elsewhere": measured("p4d", step_time_s=0.5),
    "eager": measured("p5", step_time_s=0.4),
    "compiled": measured("p5", compiled=True, step_time_s=0.3, minutes=1),
    "delayed": fp8(step_time_s=0.25),
    "current": measured("p5", "te-fp8", "current", step_time_s=0.2),
    "graphed": measured("p5", evidence=evidence(graph=replayed()), step_time_s=0.45, minutes=2),
    "failed": invalid("p5", "baseline-bf16", None, evidence=evidence(True, graph=replayed()), minutes=3),
}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (None, "elsewhere"),
        ("p4d:baseline-bf16", "elsewhere"),
        ("p5:te-fp8", "current"),
        ("p5:te-fp8:delayed", "delayed"),
        ("p5:te-fp8:delayed/eager", "delayed"),
        ("p5:baseline-bf16", "compiled"),
        ("p5:baseline-bf16/compiled", "compiled"),
        ("p5:baseline-bf16/eager", "eager"),
        ("p5:baseline-bf16/graphed", "graphed"),
    ],
)
def test_the_reference_is_the_best_ok_row_that_is_named(asked, wanted):
    comparison = compared(*THERE_ARE.values(), reference=asked)
    assert [row.run_id for row in comparison.rows if row.is_reference] == [THERE_ARE[wanted].run_id]


@pytest.mark.parametrize("failed", [(), (invalid("p5", "baseline-bf16", None),)], ids=["absent", "failed"])
def test_a_default_reference_that_is_missing_is_told_in_a_warning_and_leaves_gains_null(failed):
    comparison = compared(record := te_bf16(), *failed)
    row = row_of(comparison, record)
    (warning,) = comparison.warnings
    assert "p5:baseline-bf16" in warning
    assert "--reference" in warning
    assert row.units_per_usd is not None
    assert {name: getattr(row, name) for name in RELATIVE_NUMBERS} == NO_RELATIVES
    assert {row.warnings for row in comparison.rows} == {comparison.warnings}


def of_large_images(instance="p5"):
    large = measured(instance, settings={"workload": "vit-huge-256"}, step_time_s=0.2, minutes=1)
    return large.model_copy(update={"fingerprint": fingerprint("vit-huge-256", sizes={"img_size": 256})})


def test_of_two_workloads_the_one_of_most_instances_is_shown_and_the_other_named():
    huge, large, elsewhere = measured("p5"), of_large_images(), of_large_images("p4d")
    assert {row.run_id for row in compared(huge, large, elsewhere).rows} == {large.run_id, elsewhere.run_id}
    assert "vit-huge-256; also measured: vit-huge (--workload)" in compared(huge, large, elsewhere).warnings
    assert [row.run_id for row in compared(huge, large, workload="vit-huge").rows] == [huge.run_id]


def test_rows_stand_by_what_a_dollar_buys_on_any_instance_and_those_that_have_no_rank_last():
    slow, fast = measured("p5", step_time_s=0.4), te_bf16(step_time_s=0.1)
    imitation = fp8(step_time_s=0.01, evidence=evidence(emulated=True))
    between, failed = measured("p4d", step_time_s=0.5), invalid("p5")
    own, slower = measured("my-box", step_time_s=0.01), measured("my-box", "te-bf16", step_time_s=0.02)
    cpu = measured_on_cpu("cpu", step_time_s=1e-4, fingerprint=fingerprint())
    comparison = compared(between, failed, imitation, cpu, slower, own, slow, fast)
    ranked = (fast, between, slow, own, slower, cpu, imitation, failed)
    assert [row.run_id for row in comparison.rows] == [record.run_id for record in ranked]


def test_the_rounds_of_the_rows_that_are_shown_are_checked_and_no_other():
    old = rounds(0.3, 0.31, session_id="20260501T090000Z-000000", minutes=-60)
    new = rounds(0.1, 0.104, 0.102)
    other, refused = rounds(0.2, mode="te-bf16", minutes=0.5), unsupported(minutes=7)
    found = rounds_of(sorted((*old, *new, *other, refused), key=lambda record: record.created_utc))
    assert sorted(record.run_id for record in found) == sorted(record.run_id for record in (*new, *other, refused))
