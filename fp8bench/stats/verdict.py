"""What can be said of two modes. Apart from `ratio`, which brings numpy, since every row of a table names it."""

from typing import Literal

Verdict = Literal["faster", "slower", "inconclusive"]
"""Of two step times, by `ratio`."""

RowVerdict = Literal["better value", "worse value", "faster", "slower", "inconclusive"]
"""Of a row against the reference: of value where both have a price, of speed where one has none."""

VerdictOn = Literal["units_per_usd", "throughput"]

NOISE = 0.01
"""How far from equal a whole interval must lie before one of two is called better, without unit."""

HOLDS_NOISE = f"the interval holds a difference of less than {100 * NOISE:.2g} %"
"""Why a verdict is inconclusive, a clause without a full stop."""


def verdict_on_value(low: float, high: float) -> RowVerdict:
    """low, high: the 95 % interval of what a unit costs over what it costs in the reference, without unit."""
    if high < 1 - NOISE:
        return "better value"
    return "worse value" if low > 1 + NOISE else "inconclusive"
