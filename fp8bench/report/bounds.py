"""An interval of a quantity that is above 0, as a reader sees it."""

from collections.abc import Callable

NO_BOUNDS = 100
"""Two processes that differ twofold have ends a millionfold apart, which would read as a measurement."""


def bounds(low: float, high: float, write: Callable[[float], str]) -> str:
    """`346.6-350.2`. A lower end that reads as 0 is no time or ratio that there could be, only all that few processes
    can say: then `at most 350.2`. Ends more than NO_BOUNDS times apart tell nothing of either: then `not bounded`.
    """
    return _written(low, high, write, "-")


def gain_bounds(low: float, high: float, write: Callable[[float], str]) -> str:
    """`+24.5 to +25.3`, likewise. low and high: ratios minus 1, so that nothing is below -1."""
    return _written(low + 1, high + 1, lambda ratio: write(ratio - 1), " to ")


def _written(low: float, high: float, write: Callable[[float], str], between: str) -> str:
    if low > 0 and high > NO_BOUNDS * low:
        return "not bounded"
    if low <= 0 or write(low) == write(0.0):
        return f"at most {write(high)}"
    return f"{write(low)}{between}{write(high)}"
