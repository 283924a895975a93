"""Errors say what and what to do, carry the program's exit code, and survive the way back from a worker process."""

import pickle

import pytest

from fp8bench.schema.errors import (
    Fp8benchError,
    Interrupted,
    MeasurementInvalid,
    ModeUnavailable,
    RunFailed,
    UsageError,
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


def test_an_unknown_name_suggests_the_nearest_known_one() -> None:
    error = unknown_name("mode", "te-fp9", ["baseline-bf16", "te-fp8", "torchao-float8"], "fp8bench list modes")

    assert isinstance(error, UsageError)
    assert error.what == "unknown mode 'te-fp9'"
    assert "Did you mean 'te-fp8'?" in error.remedy
    assert "`fp8bench list modes`" in error.remedy


@pytest.mark.parametrize("known", [["baseline-bf16", "te-fp8"], []])
def test_an_unknown_name_that_is_like_no_other_gets_no_suggestion(known: list[str]) -> None:
    error = unknown_name("mode", "zzzzzz", known, "fp8bench list modes")

    assert "Did you mean" not in str(error)
    assert "`fp8bench list modes`" in error.remedy
