"""What a user asks to see, from words on the command line."""

import pytest

from fp8bench.kinds.view import Condition, View, parse_conditions, parse_job, parse_price


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


def test_a_price_is_of_an_instance():
    assert parse_price("p5=60") == ("p5", 60.0)
    assert parse_price(" p5.48xlarge = 12.5 ") == ("p5.48xlarge", 12.5)


@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
def test_a_condition_is_a_column_an_operator_and_a_value(operator):
    text = f"gain{operator}10"
    assert parse_conditions([text]) == (Condition("gain", operator, "10", text),)


def test_a_condition_may_have_spaces_and_a_value_with_signs():
    (condition,) = parse_conditions(["Mode = te-fp8:delayed/graphed"])
    assert (condition.column, condition.value) == ("mode", "te-fp8:delayed/graphed")


def test_columns_are_named_once_each():
    assert View().columns == ()
    assert View(columns=("mode, step,mode",)).columns == ("mode", "step")
