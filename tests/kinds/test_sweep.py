"""What a sweep says first, and the command that measures its winner again."""

from typing import Any

from builders import config

from fp8bench.kinds.run.sweep import SweepResult, SweepRow, answer, command_line


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


def said(winner: SweepRow, runner_up: SweepRow | None, told_apart: bool | None = None) -> list[str]:
    rows = tuple(one for one in (winner, runner_up) if one is not None)
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
BF16 = row("baseline-bf16", 64, 512.0, rounds=2)


def test_the_runner_up_is_told_apart_by_its_time():
    assert said(FP8, BF16, told_apart=True)[2:] == [
        "Runner-up: baseline-bf16 at batch 64, graphed, with 512 images/s (507-517); the two differ: it takes "
        "1.300x (1.290-1.310) the winner's time a unit."
    ]


def test_a_winner_of_one_round_says_so():
    lines = said(row("te-bf16", 64, 480.0, rounds=1, place=1), None)
    assert lines[1] == "One process is not a measurement: resume with a larger budget for an interval over processes."


LLM = {"workload": "llm-1b", "batch_size": 8, "warmup": 11, "steps": 100, "min_time_s": 10.0, "cuda_graphs": "auto"}


def test_a_workloads_own_defaults_are_not_repeated():
    usual = config(**LLM, optimizer="adamw", sequence_length=2048)
    assert command_line(usual) == ("fp8bench run --mode baseline-bf16 --workload llm-1b --gpus 8 --batch-size 8")


def test_what_differs_from_them_is_said():
    said = command_line(config(**LLM, optimizer="sgd", sequence_length=4096))
    assert "--optimizer sgd" in said
    assert "--sequence-length 4096" in said


def test_a_workload_without_tokens_has_no_length():
    assert "--sequence-length" not in command_line(config())
    assert "--optimizer" not in command_line(config())
    assert "--te-switch" not in command_line(config("te-bf16"))
    assert command_line(config("te-bf16", te_switches="split-qkv")).endswith(" --te-switch split-qkv")
    assert "--optimizer adamw" in command_line(config(optimizer="adamw"))
