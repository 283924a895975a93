"""Like is compared with like: what is not comparable is refused or marked, and so is unlike batch and GPU count."""

import pytest
from builders import fingerprint, invalid, measured, measured_on_cpu, unsupported
from report.comparing import compared, row_of

from fp8bench.schema.errors import UsageError


def test_unlike_work_is_refused_with_the_fields_that_differ_and_their_values():
    other = measured("p5", "te-bf16", fingerprint=fingerprint(optimizer="adamw", data="device"))

    with pytest.raises(UsageError) as refusal:
        compared(measured("p5"), other)

    assert "p5:te-bf16 and p5:baseline-bf16 are not comparable" in refusal.value.what
    assert "optimizer (adamw and sgd), data (device and loader)" in refusal.value.what
    assert "sizes" not in refusal.value.what
    assert "--allow-mismatch" in refusal.value.remedy


def test_unlike_work_is_refused_also_where_there_is_no_baseline_to_hold_it_against():
    other = measured("p5", "te-fp8", "delayed", fingerprint=fingerprint(data="device"))

    with pytest.raises(UsageError, match="are not comparable: data"):
        compared(measured("p5", "te-bf16"), other)


def test_a_field_that_only_one_fingerprint_has_makes_work_unlike():
    other = measured("p5", "te-bf16", fingerprint=fingerprint(dropout=0.1))

    with pytest.raises(UsageError, match=r"dropout \(0.1 and None\)"):
        compared(measured("p5"), other)


def test_unlike_work_is_shown_marked_when_that_is_allowed():
    other = measured("p5", "te-bf16", step_time_s=0.05, fingerprint=fingerprint(optimizer="adamw"))
    comparison = compared(like := measured("p5"), other, allow_mismatch=True)

    assert row_of(comparison, other).marks == ("one process", "unlike the reference in optimizer")
    assert row_of(comparison, other).speedup_vs_reference == pytest.approx(2.0)
    assert row_of(comparison, like).marks == ("one process",)


@pytest.mark.parametrize(
    ("settings", "mark"),
    [({"batch_size": 256}, "batch 256, reference 64"), ({"world_size": 16, "nodes": 2}, "16 GPUs, reference 8")],
    ids=["batch", "GPUs"],
)
def test_unlike_batch_and_gpu_count_are_compared_and_marked(settings, mark):
    comparison = compared(measured("p5"), other := measured("p5", "te-bf16", settings=settings))

    assert row_of(comparison, other).marks == ("one process", mark)
    assert row_of(comparison, other).gain_vs_reference is not None


def test_two_workloads_are_refused_by_name_where_none_was_chosen():
    huge = measured("p5")
    large = measured("p5", settings={"workload": "vit-huge-256"}, step_time_s=0.2, minutes=1)
    large = large.model_copy(update={"fingerprint": fingerprint("vit-huge-256", sizes={"img_size": 256})})

    with pytest.raises(UsageError, match=r"workload \(vit-huge-256 and vit-huge\), sizes \(") as refusal:
        compared(huge, large)

    assert "(--workload)" in refusal.value.remedy
    assert [row.run_id for row in compared(huge, large, workload="vit-huge").rows] == [huge.run_id]
    assert [row.run_id for row in compared(huge, large, workload="vit-huge-256").rows] == [large.run_id]


def test_two_batches_of_one_mode_are_two_rows_and_the_other_one_is_marked():
    small, large = measured("p5"), measured("p5", settings={"batch_size": 256}, step_time_s=0.5, minutes=1)
    comparison = compared(small, large)

    assert [row.batch_size for row in comparison.rows] == [64, 256]
    assert row_of(comparison, large).marks == ("one process", "batch 256, reference 64")


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


def test_rows_that_differ_in_micro_batches_are_refused_by_names_that_tell_them_apart():
    with pytest.raises(UsageError) as refusal:
        compared(in_pieces(1), in_pieces(4, step_time_s=0.2, minutes=1))

    assert refusal.value.what == (
        "p5:baseline-bf16 in 4 micro-batches and p5:baseline-bf16 in 1 micro-batch are not comparable: "
        "accumulation (4 and 1)"
    )
    assert refusal.value.remedy.startswith("Compare like with like (--grad-accumulation), or")


def test_the_micro_batches_of_a_step_choose_among_records():
    comparison = compared(in_pieces(1), in_pieces(4, minutes=1), grad_accumulation=4)

    assert [row.grad_accumulation for row in comparison.rows] == [4]
    with pytest.raises(UsageError, match="no record in 2 micro-batches for instance 'p5'"):
        compared(in_pieces(1), in_pieces(4, minutes=1), grad_accumulation=2)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"optimizer": "adam"}, "Compare like with like (--optimizer), or"),
        ({"optimizer": "adam", "accumulation": 4}, "Compare like with like (--optimizer, --grad-accumulation), or"),
        ({"data": "device"}, "Measure both with the same settings and version of fp8bench, or"),
    ],
    ids=["one", "two", "no option"],
)
def test_the_remedy_names_the_options_of_what_differs_and_no_other(changes, remedy):
    with pytest.raises(UsageError) as refusal:
        compared(measured("p5"), measured("p5", "te-bf16", fingerprint=fingerprint(**changes)))

    assert refusal.value.remedy.startswith(remedy)


def test_an_unlike_workload_is_chosen_whatever_else_follows_from_it():
    other = fingerprint("vit-huge-256", sizes={"img_size": 256}, data="device")
    with pytest.raises(UsageError) as refusal:
        compared(measured("p5"), measured("p5", "te-bf16", fingerprint=other))

    assert refusal.value.remedy.startswith("Compare like with like (--workload), or")
