"""Student's t is scipy's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from fp8bench.stats.student import NORMAL_QUANTILE, t_quantile


@pytest.mark.parametrize("degrees_of_freedom", range(1, 61))
def test_of_whole_degrees_of_freedom_it_is_exact(degrees_of_freedom: int):
    assert t_quantile(degrees_of_freedom) == pytest.approx(stdtrit(degrees_of_freedom, 0.975), rel=1e-12)


@given(st.floats(min_value=1, max_value=1e9))
def test_of_fractional_ones_too(degrees_of_freedom: float):
    assert t_quantile(degrees_of_freedom) == pytest.approx(stdtrit(degrees_of_freedom, 0.975), rel=1e-10)


def test_infinitely_many_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(math.inf) == NORMAL_QUANTILE


@pytest.mark.parametrize("degrees_of_freedom", [0.999, 0, -3, math.nan, -math.inf])
def test_below_one_there_is_none(degrees_of_freedom: float):
    with pytest.raises(ValueError, match="at least 1 degree"):
        t_quantile(degrees_of_freedom)
