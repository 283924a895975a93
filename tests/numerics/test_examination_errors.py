"""The definitions of the errors, on numbers that can be reckoned by hand."""

import math

import pytest
import torch

from fp8bench.numerics.examination import errors, narrowest, sqnr_db


def test_by_hand():
    found, reference = torch.tensor([3.0, 4.0, 1.0]), torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
    result = errors(found, reference)
    assert result.relative_error == pytest.approx(0.2)
    assert result.sqnr_db == pytest.approx(20 * math.log10(5))
    assert result.cosine == pytest.approx(25 / (5 * math.sqrt(26)))
    assert result.max_abs_error == 1


def test_no_error_at_all_is_infinitely_many_decibels():
    values = torch.randn(8, 4)
    result = errors(values, values.double())
    assert (result.relative_error, result.sqnr_db, result.max_abs_error) == (0, math.inf, 0)
    assert result.cosine == pytest.approx(1)


def test_twice_the_error_costs_six_decibels():
    assert sqnr_db(0.01) == pytest.approx(40)
    assert sqnr_db(0.01) - sqnr_db(0.02) == pytest.approx(6.02, abs=0.01)


def test_the_cosine_is_blind_to_size():
    values = torch.randn(100)
    result = errors(values * 2, values.double())
    assert result.cosine == pytest.approx(1)
    assert result.relative_error == pytest.approx(1)


def test_rounding_is_judged_by_the_values_and_not_by_the_dtype_that_holds_them():
    exact = torch.randn(10_000, dtype=torch.float64)
    rounded = exact.bfloat16()
    for found in (rounded, rounded.float()):
        result = errors(found, exact)
        assert result.held_in == "bfloat16"
        assert result.rounding_error == result.relative_error
        assert 1.4e-3 < result.rounding_error < 2e-3
    assert errors(exact.float(), exact).held_in == "float32"
    assert narrowest(torch.tensor([1.0, 1 + 2.0**-20])) is torch.float32


@pytest.mark.parametrize(("found", "expected"), [([math.nan, 1.0], math.nan), ([math.inf, 1.0], math.inf)])
def test_what_is_not_finite_shows(found, expected):
    assert errors(torch.tensor(found), torch.ones(2).double()).relative_error == pytest.approx(expected, nan_ok=True)


def test_a_reference_of_zeros():
    zero = torch.zeros(3, dtype=torch.float64)
    assert math.isnan(errors(torch.zeros(3), zero).relative_error)
    assert errors(torch.ones(3), zero).relative_error == math.inf
