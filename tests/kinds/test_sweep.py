"""What a sweep says first, and the command that measures its winner again."""

import pytest
from builders import config

from fp8bench.kinds.run.sweep import SweepRow, answer, command_line
from fp8bench.stats.ratio import Ratio


def row(mode: str, batch_size: int, throughput_per_s: float, rounds: int) -> SweepRow:
    ends = (throughput_per_s * 0.99, throughput_per_s * 1.01) if rounds > 1 else None
    values = {"mode": mode, "batch_size": batch_size, "execution": "graphed", "rounds": rounds, "unit": "images"}
    values |= {"throughput_per_s": throughput_per_s, "throughput_ci_per_s": ends, "units_per_usd": None}
    return SweepRow.model_construct(**values, command=f"fp8bench run --mode {mode}")


FP8 = row("te-fp8:delayed", 272, 690.0, rounds=2)
BF16 = row("baseline-bf16", 64, 512.0, rounds=2)


@pytest.mark.parametrize(
    ("versus", "said"),
    [
        (Ratio(1.3, (1.29, 1.31), "slower", None), "the two differ: it takes 1.300x (1.290-1.310) the winner's time a"),
        (Ratio(1.0, (0.99, 1.01), "inconclusive", "x"), "the two cannot be distinguished: it takes 1.000x (0.990-1.0"),
        (None, "whether the two differ is unknown, since one of them has less than two rounds."),
    ],
)
def test_the_runner_up_is_told_apart_by_its_time(versus, said):
    last = list(answer(2, FP8, BF16, versus))[-1]
    assert last.startswith(f"Runner-up: baseline-bf16 at batch 64, graphed, with 512 images/s (507-517); {said}")


def test_a_winner_of_one_round_says_so():
    assert list(answer(1, row("te-bf16", 64, 480.0, rounds=1), None, None))[1] == (
        "One process is not a measurement: resume with a larger budget for an interval over processes."
    )


LLM = {"workload": "llm-1b", "batch_size": 8, "warmup": 11, "steps": 100, "min_time_s": 10.0, "cuda_graphs": "auto"}


@pytest.mark.parametrize(
    ("ran", "said", "unsaid"),
    [
        (config(**LLM, optimizer="sgd", sequence_length=4096), ["--optimizer sgd", "--sequence-length 4096"], []),
        (config(**LLM, optimizer="adamw", sequence_length=2048), ["llm-1b --gpus 8 --batch-size 8"], ["adamw", "2048"]),
        (config(), [], ["--sequence-length", "--optimizer"]),
        (config(optimizer="adamw"), ["--optimizer adamw"], []),
        (config("te-bf16"), [], ["--te-switch"]),
        (config("te-bf16", te_switches="split-qkv"), [" --te-switch split-qkv"], []),
    ],
)
def test_the_command_says_what_is_not_usual(ran, said, unsaid):
    line = command_line(ran)
    assert all(words in line for words in said)
    assert not any(words in line for words in unsaid)
