"""What may be as cheap as the cheapest: intervals that are too close, closer still on one machine."""

import pytest
from report.made_rows import row

from fp8bench.kinds.run.rivals import rivals

CHEAPEST = row(instance="h200-1x", machine="a", units_per_usd=1000.0, units_per_usd_ci=(990.0, 1010.0))


def other(high: float, machine: str | None, instance: str = "h200-1x"):
    return row(instance=instance, machine=machine, units_per_usd=high - 10, units_per_usd_ci=(high - 20, high))


@pytest.mark.parametrize(
    ("high", "machine", "instance", "named"),
    [
        (991.0, "a", "h200-1x", True),
        (985.0, "a", "h200-1x", True),
        (975.0, "a", "h200-1x", False),
        (975.0, "b", "h200-1x", True),
        (975.0, "b", "h100-1x", True),
        (975.0, None, "h100-1x", True),
        (945.0, "b", "h100-1x", False),
    ],
)
def test_a_row_is_named_unless_it_is_further_below_than_noise(high, machine, instance, named):
    one = other(high, machine, instance)
    assert rivals(CHEAPEST, [one, CHEAPEST]) == ([one] if named else [])


def test_without_an_interval_nothing_is_known_of_a_row():
    one = row(instance="p4d", machine=None, units_per_usd=999.0, units_per_usd_ci=None)
    assert rivals(CHEAPEST, [one]) == []
    assert rivals(one, [CHEAPEST]) == []
