"""What a sweep says first: the winner, the runner-up, the same batch of both, and what a larger budget would decide."""

from typing import Any

from fp8bench.kinds.run.sweep import SweepResult, SweepRow, answer


def row(
    mode: str, batch_size: int, throughput_per_s: float, rounds: int, place: int | None = None, **changes: Any
) -> SweepRow:
    ends = (throughput_per_s * 0.99, throughput_per_s * 1.01) if rounds > 1 else None
    values: dict[str, Any] = {
        **{"place": place, "mode": mode, "batch_size": batch_size, "compile": "auto", "cuda_graphs": "auto"},
        **{"te_attention": "te", "execution": "graphed", "attention": None, "status": "ok", "cause": None},
        **{"rounds": rounds, "unit": "images", "throughput_per_s": throughput_per_s, "throughput_ci_per_s": ends},
        **{"units_per_usd": None, "units_per_usd_ci": None, "peak_memory_bytes": None, "dropped": None},
        "command": f"fp8bench run --mode {mode}",
    }
    return SweepRow(**{**values, **changes})


def said(winner: SweepRow, runner_up: SweepRow | None, *others: SweepRow, told_apart: bool | None = None) -> list[str]:
    rows = tuple(one for one in (winner, runner_up, *others) if one is not None)
    time = 1.3 if told_apart is not None else None
    found = SweepResult(
        session="mine",
        instance="h100x1",
        usd_per_hour=None,
        spent_s=600,
        turns=9,
        ended=None,
        winner=winner,
        runner_up=runner_up,
        told_apart=told_apart,
        runner_up_time=time,
        runner_up_time_ci=(1.29, 1.31) if time else None,
        rows=rows,
        modes_not_tried=(),
        not_tried=(),
    )
    return list(answer(found))


FP8 = row("te-fp8:delayed", 272, 690.0, rounds=2, place=1)
FP8_AT_64 = row("te-fp8:delayed", 64, 585.0, rounds=0)
BF16 = row("baseline-bf16", 64, 512.0, rounds=2)


def test_where_batches_differ_both_are_shown_at_one_that_they_share():
    lines = said(FP8, BF16, FP8_AT_64, told_apart=True)

    assert lines[2] == (
        "Runner-up: baseline-bf16 at batch 64, graphed, with 512 images/s (507-517); the two differ: it takes "
        "1.300x (1.290-1.310) the winner's time a unit."
    )
    assert lines[3] == (
        "Both at batch 64: te-fp8:delayed with 585 images/s in a short look only and baseline-bf16 with 512 images/s "
        "(507-517) in 2 rounds."
    )
    assert len(lines) == 4


def test_without_a_shared_size_nothing_is_said_of_it():
    other = row("te-fp8:delayed", 64, 585.0, rounds=0, te_attention="sdpa")
    assert not any("Both at" in line for line in said(FP8, BF16, other, told_apart=True))


def test_a_better_look_is_no_measurement_and_is_named():
    better = row("te-fp8:delayed", 288, 700.0, rounds=0, place=3)
    [line] = [line for line in said(FP8, BF16, better, told_apart=True) if line.startswith("Better")]

    assert line == (
        "Better, but of one process alone: te-fp8:delayed at batch 288, graphed, with 700 images/s in a short look "
        "only. Resume to measure it."
    )
    dropped = better.model_copy(update={"place": None, "dropped": "leaves less than 8 % of the memory free"})
    assert not any(line.startswith("Better") for line in said(FP8, BF16, dropped, told_apart=True))


def test_a_winner_of_one_round_says_so():
    lines = said(row("te-bf16", 64, 480.0, rounds=1, place=1), None)
    assert lines[1] == ("One process is not a measurement: resume with a larger budget for an interval over processes.")
