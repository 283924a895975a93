"""Errors say what and what to do, carry the program's exit code, and survive the way back from a worker process."""

import pickle

import pytest

from fp8bench.schema.errors import (
    MOST_NAMES,
    Fp8benchError,
    Interrupted,
    MeasurementInvalid,
    ModeUnavailable,
    RunFailed,
    UsageError,
    did_you_mean,
    nearest,
    unknown_name,
)

EXIT_CODES = [
    (UsageError, 2),
    (ModeUnavailable, 3),
    (MeasurementInvalid, 4),
    (RunFailed, 5),
    (Interrupted, 130),
]


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES)
def test_each_kind_has_its_promised_exit_code_and_belongs_to_the_family(kind: type[Fp8benchError], code: int) -> None:
    assert kind.exit_code == code
    assert issubclass(kind, Fp8benchError)


def test_an_error_of_no_particular_kind_means_that_the_run_broke() -> None:
    assert Fp8benchError("it broke", "Try again").exit_code == 5


def test_it_reads_as_one_line_of_what_and_remedy() -> None:
    text = str(UsageError("batch size 0 is wrong", "Give a positive number"))

    assert text == "batch size 0 is wrong. Give a positive number."
    assert "\n" not in text


@pytest.mark.parametrize("kind", [kind for kind, _ in EXIT_CODES])
def test_it_crosses_a_process_border_with_its_kind_and_both_words(kind: type[Fp8benchError]) -> None:
    back = pickle.loads(pickle.dumps(kind("no fp8 unit", "Use a Hopper GPU")))

    assert type(back) is kind
    assert (back.what, back.remedy) == ("no fp8 unit", "Use a Hopper GPU")
    assert str(back) == "no fp8 unit. Use a Hopper GPU."


@pytest.mark.parametrize(("name", "hint"), [("te-fp9", "Did you mean 'te-fp8'? "), ("zzzzzz", "")])
def test_an_unknown_name_has_the_nearest_known_one_and_where_all_are(name: str, hint: str) -> None:
    error = unknown_name("mode", name, ["baseline-bf16", "te-fp8", "torchao-float8"], "fp8bench list modes")

    assert error.what == f"unknown mode {name!r}"
    assert error.remedy == f"{hint}See every one with `fp8bench list modes`"


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
