"""An interval of a quantity that is above 0, as a reader sees it."""

from collections.abc import Callable


def bounds(low: float, high: float, write: Callable[[float], str]) -> str:
    """`346.6-350.2`. A lower end of 0 is no time or ratio that there could be, only all that few processes can say:
    then `at most 350.2`.
    """
    return f"{write(low)}-{write(high)}" if low > 0 else f"at most {write(high)}"
