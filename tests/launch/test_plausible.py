"""Step times that an instance's GPUs cannot have taken are doubted."""

import pytest

from fp8bench.launch.imported import ImportedFigure, doubts
from fp8bench.pricing.catalog import load

CATALOG = load()


def figure(step_time_s: float, mode: str = "baseline-bf16", batch_size: int = 64, workload: str = "vit-huge"):
    return ImportedFigure(
        mode=mode,
        workload=workload,
        step_time_s=step_time_s,
        batch_size=batch_size,
        gpus=8,
        source="a talk",
        published_on=None,
        compile=None,
        attention=None,
    )


@pytest.mark.parametrize(
    ("instance", "given"),
    [("p4d", figure(0.41)), ("p5", figure(0.199)), ("p5", figure(0.03, "te-fp8")), ("p5", figure(9.0))],
)
def test_what_the_gpu_can_do_is_not_doubted(instance, given):
    assert list(doubts(given, instance, CATALOG)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (figure(150.0), "--step-time is in seconds; 150 ms are 0.15"),
        (figure(11.0), "uses 0.45 % of what"),
        (figure(0.04), "uses 124 % of what this instance's GPU can compute in that time: more than it can do"),
        (figure(0.02, "te-fp8"), "more than it can do"),
    ],
)
def test_what_it_cannot_is_doubted_in_one_line(given, words):
    (line,) = doubts(given, "p5", CATALOG)

    assert words in line


@pytest.mark.parametrize(
    ("instance", "workload"), [("unheard-of", "vit-huge"), ("p5", "vit-huge-256")], ids=["no GPU", "no FLOPs"]
)
def test_of_unknown_work_or_gpu_only_a_very_long_step_is_doubted(instance, workload):
    (line,) = doubts(figure(30.1, workload=workload), instance, CATALOG)

    assert line.startswith("a step of 30.1 s is longer than training steps are")
    assert list(doubts(figure(29.9, workload=workload), instance, CATALOG)) == []
