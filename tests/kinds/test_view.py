"""What a user asks to see, from words on the command line, and what is refused."""

import pytest

from fp8bench.kinds.view import Condition, parse_columns, parse_conditions, parse_job, parse_price
from fp8bench.schema.errors import UsageError


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("90M", 90e6),
        ("90m", 90e6),
        ("1.5B", 1.5e9),
        ("1.5G", 1.5e9),
        ("2T", 2e12),
        ("300k", 3e5),
        ("90_000_000", 9e7),
        ("90,000,000", 9e7),
        ("9e7", 9e7),
        (".5 k", 500.0),
    ],
)
def test_a_job_is_a_number_of_units(text, units):
    assert parse_job(text) == pytest.approx(units)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "not a number of units above 0"),
        ("0M", "not a number of units above 0"),
        ("-3M", "not a number of units above 0"),
        ("many", "not a number of units above 0"),
        ("nan", "not a number of units above 0"),
        ("inf", "not a number of units above 0"),
        ("90MB", "not a number of units above 0"),
        ("1e99", "is too large"),
        ("9" * 400, "is too large"),
    ],
)
def test_a_job_of_nothing_or_of_no_number_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        parse_job(text)


def test_a_price_is_of_an_instance():
    assert parse_price("p5=60") == ("p5", 60.0)
    assert parse_price(" p5.48xlarge = 12.5 ") == ("p5.48xlarge", 12.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("60", "is not INSTANCE=USD"),
        ("p5=", "is not INSTANCE=USD"),
        ("=60", "is not INSTANCE=USD"),
        ("p5=-60", "is not INSTANCE=USD"),
        ("p5=0", "is not INSTANCE=USD"),
        ("p5=1e-30", "is not INSTANCE=USD"),
        ("p5=cheap", "is not INSTANCE=USD"),
        ("p5=nan", "is not INSTANCE=USD"),
        ("p5=1e9", "no machine costs more in an hour"),
    ],
)
def test_what_is_no_price_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        parse_price(text)


@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
def test_a_condition_is_a_column_an_operator_and_a_value(operator):
    text = f"gain{operator}10"
    assert parse_conditions([text]) == (Condition("gain", operator, "10", text),)


def test_a_condition_may_have_spaces_and_a_value_with_signs():
    (condition,) = parse_conditions(["Mode = te-fp8:delayed/graphed"])
    assert (condition.column, condition.value) == ("mode", "te-fp8:delayed/graphed")


@pytest.mark.parametrize("text", ["mode", "=te-fp8", "mode=", "mode te-fp8", "3>2", ">"])
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(UsageError, match="is not COLUMN, one of"):
        parse_conditions([text])


def test_columns_are_named_once_each():
    assert parse_columns(None) == ()
    assert parse_columns("mode, step,mode") == ("mode", "step")
