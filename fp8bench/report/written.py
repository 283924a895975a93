"""How a number is written in a cell or a sentence, with its unit and its interval."""

from collections.abc import Callable

from fp8bench.report.document import NOTHING

NO_BOUNDS = 100
"""Two processes that differ twofold have ends a millionfold apart, which would read as a measurement."""

Interval = tuple[float, float]


def number(value: float | None, form: str, scale: float = 1, after: str = "") -> str:
    """scale: to the unit that is shown."""
    return NOTHING if value is None else f"{value * scale:{form}}{after}"


def counted(count: int, word: str, words: str = "") -> str:
    """`1 file`, `2 files`. words: the plural where an `s` does not make it."""
    return f"{count} {word if count == 1 else words or f'{word}s'}"


def workers(count: int, device: str) -> str:
    """`1 GPU`, `2 processes`: each trains on its own batches."""
    return counted(count, "GPU") if device == "cuda" else counted(count, "process", "processes")


def rate(value: float | None) -> str:
    """Whole numbers, but three digits of a small one."""
    return number(value, ",.0f" if value is None or value >= 100 else ".3g")


def rate_with_interval(value: float | None, interval: Interval | None) -> str:
    """`512,000 (508,000-516,000)`; without its interval where it has none."""
    return f"{rate(value)} ({low_to_high(*interval, rate)})" if interval else rate(value)


def with_interval(value: float | None, interval: Interval | None, form: str, scale: float = 1, after: str = "") -> str:
    """`348.1 (346.6-350.2)`; without its interval where it has none."""
    if value is None or interval is None:
        return number(value, form, scale, after)
    return f"{number(value, form, scale, after)} ({low_to_high(*interval, lambda end: f'{end * scale:{form}}')})"


def ratio(value: float | None, verdict: str | None = None) -> str:
    """`1.25x`; with a `?` where the verdict on it is undecided."""
    return number(value, ".2f", after="x?" if verdict == "undecided" else "x")


def error(value: float | None) -> str:
    """Two digits."""
    return NOTHING if value is None else f"{value:.1e}" if value else "0"


def share(value: float) -> str:
    """Per cent; two digits of a small one, so that a single value in a million is not shown as none."""
    return "0 %" if value == 0 else f"{value * 100:.2g} %"


def low_to_high(low: float, high: float, write: Callable[[float], str]) -> str:
    """`346.6-350.2`. A lower end that reads as 0 is no time or ratio that there could be, only all that few processes
    can say: then `at most 350.2`. Ends more than NO_BOUNDS times apart bound neither: then `not bounded`.
    """
    return _between(low, high, write, "-")


def change(value: float | None, interval: Interval | None) -> str:
    """`+24.9 % (+24.5 to +25.3)`; without its interval where it has none. value: a ratio minus 1, its ends too."""
    said = number(value, "+.1f", 100, " %")
    return said if interval is None else f"{said} ({change_low_to_high(*interval)})"


def change_low_to_high(low: float, high: float) -> str:
    """`+24.5 to +25.3`, as `bounds`: a ratio minus 1 is not below -1."""
    return _between(low + 1, high + 1, lambda one: f"{(one - 1) * 100:+.1f}", " to ")


def _between(low: float, high: float, write: Callable[[float], str], word: str) -> str:
    if low > 0 and high > NO_BOUNDS * low:
        return "not bounded"
    if low <= 0 or write(low) == write(0.0):
        return f"at most {write(high)}"
    return f"{write(low)}{word}{write(high)}"
