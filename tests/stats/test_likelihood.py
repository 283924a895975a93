"""Empirical likelihood's ends: the binomial's for two kinds of numbers, and never beyond the numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.stats.intervals import mean_interval

CRITICAL = 1.96


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "all_of_them"), [(1, 16), (3, 14), (7, 14), (5, 30)])
def test_of_two_kinds_of_numbers_it_is_the_binomials_likelihood_interval(slow: int, all_of_them: int) -> None:
    from scipy.optimize import brentq

    def deviance(share: float) -> float:
        seen = slow / all_of_them
        return (
            2 * slow * math.log(seen / share)
            + 2 * (all_of_them - slow) * math.log((1 - seen) / (1 - share))
            - CRITICAL**2
        )

    low, high = mean_interval([1.0] * (all_of_them - slow) + [1.26] * slow, CRITICAL)

    assert (low - 1) / 0.26 == pytest.approx(brentq(deviance, 1e-12, slow / all_of_them), rel=1e-3, abs=1e-6)
    assert (high - 1) / 0.26 == pytest.approx(brentq(deviance, slow / all_of_them, 1 - 1e-12), rel=1e-3)


def test_it_reaches_further_to_the_side_of_the_tail() -> None:
    values = [1.0] * 15 + [2.0]
    low, high = mean_interval(values, CRITICAL)

    assert high - np.mean(values) > 2 * (np.mean(values) - low)


def test_of_many_normal_numbers_it_is_students() -> None:
    values = np.random.default_rng(1).normal(1, 0.1, 2000)
    error = values.std(ddof=1) / math.sqrt(2000)

    assert mean_interval(values.tolist(), CRITICAL) == pytest.approx(
        (values.mean() - CRITICAL * error, values.mean() + CRITICAL * error), abs=0.05 * error
    )


@settings(max_examples=50)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20), st.floats(0.1, 13))
def test_it_holds_the_mean_and_stays_within_the_numbers(values: list[float], critical: float) -> None:
    low, high = mean_interval(values, critical)
    nothing = 1e-9 * max(values)

    assert min(values) - nothing <= low <= np.mean(values) + nothing
    assert np.mean(values) - nothing <= high <= max(values) + nothing


def test_equal_numbers_have_no_width_and_no_numbers_are_an_error() -> None:
    assert mean_interval([2.0, 2.0, 2.0], CRITICAL) == (2.0, 2.0)
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([], CRITICAL)
