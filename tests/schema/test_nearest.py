"""What an unknown name may have meant."""

import pytest

from fp8bench.schema.errors import MOST_NAMES, did_you_mean, nearest

INSTANCES = ["p4d", "p4de", "p5", "p5e", "p6-b200", "lambda-1x-h100", "lambda-8x-h100"]
MODES = ["baseline-bf16", "baseline-fp32", "te-bf16", "te-fp8", "torchao-float8"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("p4", INSTANCES, ["p4d"]),
        ("p4dd", INSTANCES, ["p4d"]),
        ("P5", INSTANCES, ["p5"]),
        ("te-pf8", MODES, ["te-fp8"]),
        ("tefp8", MODES, ["te-fp8"]),
        ("te-fp9", MODES, ["te-fp8"]),
        ("bf16", MODES, ["baseline-bf16", "te-bf16"]),
        ("torchao-fp8", MODES, ["torchao-float8"]),
        ("b200", INSTANCES, ["p6-b200"]),
        ("h100", INSTANCES, ["lambda-1x-h100", "lambda-8x-h100"]),
        ("zzzzzz", MODES, []),
        ("x", INSTANCES, []),
        ("anything", [], []),
    ],
)
def test_the_nearest_names(name: str, known: list[str], meant: list[str]) -> None:
    assert nearest(name, known) == meant


def test_of_a_family_the_names_come_first_and_no_more_than_a_few() -> None:
    assert nearest("h100", INSTANCES, ["p5"]) == ["p5", "lambda-1x-h100", "lambda-8x-h100"]
    assert len(nearest("h100", [f"lambda-h100-{number}" for number in range(99)])) == MOST_NAMES


def test_a_slip_goes_before_a_family() -> None:
    assert nearest("p5x", INSTANCES, ["p6-b200"]) == ["p5"]


def test_the_question_names_every_one() -> None:
    assert did_you_mean([]) == ""
    assert did_you_mean(["a"]) == "Did you mean 'a'? "
    assert did_you_mean(["a", "b", "c"]) == "Did you mean 'a', 'b' or 'c'? "
