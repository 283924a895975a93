"""What is no valid option is refused in one line, with its origin, its value and a remedy."""

from typing import Any

import pytest

from fp8bench.config.request import OPTIONS
from fp8bench.config.sources import resolve
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import flag_of, variable_of

FILE = "nightly.yaml"
BEYOND = "9" * 5000


def refused(flags: dict[str, Any], variables: dict[str, str], values: dict[str, Any], text: str = "") -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve(flags, variables, values, FILE, text)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, 0) for name in ("batch_size", "steps", "timeout_s", "price", "rounds", "max_rounds")],
        *[(name, 0) for name in ("tensor_parallel", "grad_accumulation")],
        *[(name, -1) for name in ("gpus", "min_time_s", "warmup", "workers", "seed")],
        *[(name, value) for name in ("min_time_s", "timeout_s") for value in ("inf", "nan", 86401)],
        *[(name, value) for name in ("batch_size", "steps") for value in ("many", "1_0", "\u0663", BEYOND)],
        *[("precision", text) for text in ("%", "one%", "0%", "100%", "-1%", "1", "1.5", "nan%", "inf%", "1 percent")],
        *[("session", name) for name in ("../elsewhere", ".hidden")],
        *[("name", name) for name in ("two words", "-a", "x" * 65, "box/7")],
        ("price", "inf"),
        ("aa", "perhaps"),
        ("compile", "sometimes"),
        ("data", "disk"),
        ("te_attention", "flash"),
        ("parallel", "zero"),
        ("activation_checkpointing", "most"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_value_is_named_with_its_origin_whichever_that_is(field: str, value: object) -> None:
    for flags, variables, values, origin in (
        ({field: value}, {}, {}, f"{flag_of(field)}: invalid value "),
        ({}, {variable_of(field): str(value)}, {}, f"{field} from {variable_of(field)}: invalid value "),
        ({}, {}, {field: value}, f"{field} from {FILE}: invalid value "),
    ):
        error = refused(flags, variables, values)
        assert error.what.startswith(origin)
        assert str(value)[:40] in error.what
        assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("batchsize", "batch_size"), ("batch-sizes", "batch_size"), ("modes", "mode"), ("result_dir", "results_dir")],
)
def test_an_unknown_name_is_refused_with_the_nearest_and_its_line(typed: str, meant: str) -> None:
    error = refused({}, {}, {"seed": 1, typed: 1}, f"seed: 1\n{typed}: 1\n")
    assert f"{FILE} line 2" in error.what
    assert repr(typed.replace("-", "_")) in error.what
    assert f"Did you mean {meant!r}?" in error.remedy

    variable = variable_of(typed.replace("-", "_"))
    error = refused({}, {variable: "32"}, {})
    assert f"unknown variable {variable!r}" in error.what
    assert f"Did you mean {variable_of(meant)!r}?" in error.remedy


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    """The prefix that all variables have makes none of them nearer."""
    for error in (refused({}, {}, {"qqqqqq": 1}), refused({}, {"FP8BENCH_FOO": "1"}, {})):
        assert "Did you mean" not in error.remedy


@pytest.mark.parametrize("field", [name for name, option in OPTIONS.items() if option.limit])
def test_a_number_beyond_all_sense_is_refused_with_the_most_and_why(field: str) -> None:
    bound = OPTIONS[field].limit
    assert bound is not None
    assert getattr(resolve({field: str(bound.most)}, {}, {}, None).request, field) == bound.most
    for text in (str(bound.most + 1), "9" * 20):
        error = refused({field: text}, {}, {})
        assert error.what.startswith(f"{flag_of(field)}: invalid value {text!r}: ")
        assert f"{bound.most:,}, since {bound.why}" in error.what


def test_a_value_that_is_repeated_has_no_password() -> None:
    error = refused({"instance": "p5", "steps": "s3://AKIA:hunter2@bucket/x"}, {}, {})
    assert error.what.startswith("--steps: invalid value 's3://***@bucket/x'")


@pytest.mark.parametrize("value", ["", " ", ","])
@pytest.mark.parametrize("field", ["workload", "price", "session", "mode", "results_dir"])
def test_an_empty_value_of_the_file_is_no_default(field: str, value: str) -> None:
    error = refused({}, {}, {"seed": 1, field: value}, f"seed: 1\n{field}: '{value}'\n")
    assert error.what == f"{field} from {FILE} line 2: invalid value '{value}': it is empty"


@pytest.mark.parametrize(
    ("flags", "variables", "values", "words"),
    [
        ({}, {}, {"batch-size": 8, "batch_size": 16}, f"{FILE} gives 'batch_size' twice"),
        ({"session": "../elsewhere"}, {}, {}, "letters, digits, '.', '_' and '-' are allowed"),
    ],
)
def test_what_cannot_stand_together_is_refused(
    flags: dict[str, Any], variables: dict[str, str], values: dict[str, Any], words: str
) -> None:
    assert words in refused(flags, variables, values).what
