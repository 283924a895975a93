"""Student's t from a table is Student's t."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.stats.intervals import NORMAL_QUANTILE, t_quantile


@given(st.floats(min_value=1, max_value=1e9))
def test_it_is_scipys_within_a_thousandth(degrees_of_freedom: float) -> None:
    from scipy.special import stdtrit

    assert t_quantile(degrees_of_freedom) == pytest.approx(stdtrit(degrees_of_freedom, 0.975), rel=1e-3)


@pytest.mark.parametrize(("degrees_of_freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228)])
def test_it_is_that_of_the_textbook_tables(degrees_of_freedom: float, quantile: float) -> None:
    assert t_quantile(degrees_of_freedom) == pytest.approx(quantile, rel=1e-3)


def test_infinitely_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_quantile(math.inf) == pytest.approx(1.95996, abs=1e-5)
    assert t_quantile(math.inf) == pytest.approx(NORMAL_QUANTILE, rel=1e-6)


@given(st.floats(min_value=1, max_value=1e4), st.floats(min_value=1, max_value=1e4))
def test_less_freedom_is_never_narrower(one: float, other: float) -> None:
    assert t_quantile(min(one, other)) >= t_quantile(max(one, other))


@pytest.mark.parametrize("degrees_of_freedom", [0.999, 0, -3, math.nan, -math.inf])
def test_below_one_there_is_none(degrees_of_freedom: float) -> None:
    with pytest.raises(ValueError, match="at least 1 degree"):
        t_quantile(degrees_of_freedom)
