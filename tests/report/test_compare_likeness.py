"""Like is compared with like: what is not comparable is refused or marked, and so is unlike batch and GPU count."""

import pytest
from builders import fingerprint, invalid, measured, measured_on_cpu, unsupported
from report.comparing import compared, row_of

from fp8bench.kinds.view import View
from fp8bench.schema.errors import UsageError


def test_unlike_work_stands_beside_the_reference_with_the_reason_and_no_gain():
    other = measured("p5", "te-bf16", fingerprint=fingerprint(optimizer="adamw", data="device"))
    row = row_of(compared(measured("p5"), other), other)

    (mark,) = (mark for mark in row.marks if mark.startswith("other work"))
    assert mark.startswith("other work than the reference's (optimizer, data)")
    assert (row.speedup_vs_reference, row.gain_vs_reference, row.verdict) == (None, None, None)
    assert row.step_time_s


def test_so_it_does_where_there_is_no_baseline():
    other = measured("p5", "te-fp8", "delayed", fingerprint=fingerprint(data="device"))
    comparison = compared(measured("p5", "te-bf16"), other)
    assert any("(data)" in mark for row in comparison.rows for mark in row.marks)


def test_a_field_that_only_one_fingerprint_has_makes_work_unlike():
    other = measured("p5", "te-bf16", fingerprint=fingerprint(dropout=0.1))
    row = row_of(compared(measured("p5"), other), other)

    assert any("(dropout)" in mark for mark in row.marks)
    assert row.speedup_vs_reference is None


def test_unlike_work_is_shown_marked_when_that_is_allowed():
    other = measured("p5", "te-bf16", step_time_s=0.05, fingerprint=fingerprint(optimizer="adamw"))
    comparison = compared(like := measured("p5"), other, allow_mismatch=True)

    assert row_of(comparison, other).marks == ("one process", "unlike the reference in optimizer")
    assert row_of(comparison, other).speedup_vs_reference == pytest.approx(2.0)
    assert row_of(comparison, like).marks == ("one process",)


def test_an_unlike_gpu_count_is_compared_and_marked():
    comparison = compared(measured("p5"), other := measured("p5", "te-bf16", settings={"world_size": 16, "nodes": 2}))

    assert row_of(comparison, other).marks == ("one process", "16 GPUs, reference 8")
    assert row_of(comparison, other).gain_vs_reference is not None


def test_an_unlike_batch_is_compared_only_where_that_is_asked_for():
    records = measured("p5"), measured("p5", "te-bf16", settings={"batch_size": 256})
    row = row_of(compared(*records), records[1])
    assert row.marks == ("one process", "p5 has no baseline-bf16 of batch 256 to compare it with")
    assert row.gain_vs_reference is row.speedup_vs_reference is row.verdict is None
    for asked in ({"allow_mismatch": True}, {"view": View(best_batch=True)}):
        row = row_of(compared(*records, **asked), records[1])
        assert row.marks == ("one process", "batch 256, reference 64")
        assert row.gain_vs_reference is not None


def of_large_images(instance="p5", **changes):
    large = measured(instance, settings={"workload": "vit-huge-256"}, step_time_s=0.2, minutes=1, **changes)
    return large.model_copy(update={"fingerprint": fingerprint("vit-huge-256", sizes={"img_size": 256})})


def test_of_two_workloads_the_one_of_most_instances_is_shown_and_the_other_named():
    huge, large, elsewhere = measured("p5"), of_large_images(), of_large_images("p4d")
    comparison = compared(huge, large, elsewhere)

    assert {row.run_id for row in comparison.rows} == {large.run_id, elsewhere.run_id}
    assert "vit-huge-256; also measured: vit-huge (--workload)" in comparison.warnings
    assert [row.run_id for row in compared(huge, large, workload="vit-huge").rows] == [huge.run_id]
    assert [row.run_id for row in compared(huge, large, workload="vit-huge-256").rows] == [large.run_id]


def test_an_instance_without_the_workload_is_named():
    huge, large, other = measured("p5"), of_large_images(), measured("p4d", settings={"batch_size": 8})
    comparison = compared(huge, large, large.model_copy(update={"instance": "h100-1x"}), other)
    assert any("p4d has no record of it" in text or "h100-1x has no record" in text for text in comparison.warnings)


def test_two_batches_of_one_mode_are_two_rows_and_each_a_reference():
    small, large = measured("p5"), measured("p5", settings={"batch_size": 256}, step_time_s=0.5, minutes=1)
    comparison = compared(small, large)

    assert [row.batch_size for row in comparison.rows] == [64, 256]
    assert [row.is_reference for row in comparison.rows] == [True, True]
    assert row_of(comparison, large).marks == ("one process",)


def test_cpu_processes_are_not_called_gpus():
    odd = measured_on_cpu(mode="baseline-fp32", settings={"world_size": 4})

    assert "4 processes, reference 2" in row_of(compared(measured_on_cpu(), odd), odd).marks


@pytest.mark.parametrize("record", [unsupported(), invalid()], ids=["unsupported", "invalid"])
def test_a_row_that_did_not_run_is_not_refused_for_unlike_work(record):
    odd = record.model_copy(update={"fingerprint": {"workload": "vit-huge"}})

    assert row_of(compared(measured("p5"), odd), odd).status == record.status


def in_pieces(number, mode="baseline-bf16", **changes):
    """A measurement whose steps consist of so many micro-batches."""
    settings = {"grad_accumulation": number}
    return measured("p5", mode, settings=settings, fingerprint=fingerprint(accumulation=number), **changes)


def test_rows_that_differ_in_micro_batches_are_not_compared():
    comparison = compared(in_pieces(1), four := in_pieces(4, step_time_s=0.2, minutes=1))
    other = next(row for row in comparison.rows if not row.is_reference)

    assert {row.run_id for row in comparison.rows} >= {four.run_id}
    assert other.speedup_vs_reference is None
    assert any("(accumulation): compare like with like (--grad-accumulation)" in mark for mark in other.marks)


def test_the_micro_batches_of_a_step_choose_among_records():
    comparison = compared(in_pieces(1), in_pieces(4, minutes=1), grad_accumulation=4)

    assert [row.grad_accumulation for row in comparison.rows] == [4]
    with pytest.raises(UsageError, match="no record in 2 micro-batches for instance 'p5'"):
        compared(in_pieces(1), in_pieces(4, minutes=1), grad_accumulation=2)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"optimizer": "adam"}, "compare like with like (--optimizer)"),
        ({"optimizer": "adam", "accumulation": 4}, "compare like with like (--optimizer, --grad-accumulation)"),
        ({"data": "device"}, "measure both with the same settings and version of fp8bench"),
    ],
    ids=["one", "two", "no option"],
)
def test_the_remedy_names_the_options_of_what_differs_and_no_other(changes, remedy):
    row = row_of(
        compared(measured("p5"), other := measured("p5", "te-bf16", fingerprint=fingerprint(**changes))), other
    )

    assert any(mark.endswith(remedy) for mark in row.marks)


def test_an_unlike_workload_is_chosen_whatever_else_follows_from_it():
    work = fingerprint("vit-huge-256", sizes={"img_size": 256}, data="device")
    other = measured("p5", "te-bf16", fingerprint=work)
    row = row_of(compared(measured("p5"), other, workload="vit-huge"), other)

    assert any("compare like with like (--workload)" in mark for mark in row.marks)
