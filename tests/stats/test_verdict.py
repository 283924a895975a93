"""A verdict on value asks for the whole interval beyond 1 %."""

import pytest

from fp8bench.stats.certainty import verdict_on_value


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.9, 0.989, "better value"),
        (0.9, 0.99, "inconclusive"),
        (0.98, 1.02, "inconclusive"),
        (0.5, 2.0, "inconclusive"),
        (1.01, 1.2, "inconclusive"),
        (1.011, 1.2, "worse value"),
    ],
)
def test_a_unit_that_costs_less_is_better_value(low, high, verdict):
    assert verdict_on_value(low, high) == verdict
