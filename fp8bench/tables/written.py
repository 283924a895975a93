"""How a number is written in a cell or a sentence, with its unit and its interval."""

from collections.abc import Callable

from fp8bench.tables.document import NOTHING

HOURS_PER_YEAR = 8766
Interval = tuple[float, float]


Form = str | Callable[[float], str]
"""How a number is formatted: a specification, e.g. `,.1f`, or a function."""


def number(value: float | None, form: Form, scale: float = 1, after: str = "") -> str:
    """Format a number, or NOTHING for None. scale: the factor to the unit that is shown."""
    if value is None:
        return NOTHING
    return f"{form(value * scale) if callable(form) else format(value * scale, form)}{after}"


def counted(count: int, word: str, words: str = "") -> str:
    """Write a count, e.g. `1 file`, `2 files`. words: the plural, if it is not the word with an `s`."""
    return f"{count} {word if count == 1 else words or f'{word}s'}"


def time_unit_of(longest_h: float) -> tuple[float, str]:
    """Return what hours are multiplied by, and the unit in which a chart of so many is read."""
    if longest_h < 2:
        return 60.0, "minutes"
    return (1.0, "hours") if longest_h < 72 else (1 / 24, "days")


def time_said(hours: float) -> str:
    """Write hours, e.g. `22.7 min`, `34.1 h`, `5.2 days`, `3.6 years`."""
    if hours >= 2 * HOURS_PER_YEAR:
        return f"{hours / HOURS_PER_YEAR:.1f} years"
    scale, unit = time_unit_of(hours)
    return f"{hours * scale:.1f} {'min' if unit == 'minutes' else 'h' if unit == 'hours' else unit}"


def brief_count(value: float | None) -> str:
    """Write a count with three digits, e.g. `65.8 B`, `812 M`, `34 k`."""
    for scale, letter in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if value is not None and value >= scale:
            return number(value, "#.3g", 1 / scale).rstrip(".") + letter
    return number(value, ".3g")


def workers(count: int, device: str) -> str:
    """Write the number of workers, e.g. `1 GPU`, `2 processes`; each worker trains on its own batches."""
    return counted(count, "GPU") if device == "cuda" else counted(count, "process", "processes")


def rate(value: float | None) -> str:
    """Write a rate as an integer, or with three digits if it is below 100."""
    return number(value, ",.0f" if value is None or value >= 100 else ".3g")


def with_interval(value: float | None, interval: Interval | None, form: Form, scale: float = 1, after: str = "") -> str:
    """Write e.g. `348.1 (346.6-350.2)`; only the value if there is no interval."""
    said = number(value, form, scale, after)
    if value is None or interval is None:
        return said
    return f"{said} ({low_to_high(*interval, lambda end: number(end, form, scale))})"


def half_width(interval: Interval | None, of: float = 1.0) -> str:
    """Write e.g. ` ±0.2 %` or ` ±13 %`, half an interval's width over `of`; nothing without one."""
    half = 0.0 if interval is None else (interval[1] - interval[0]) / 2 / of
    return "" if interval is None else f" ±{half * 100:.{int(half < 0.1)}f} %" if half < 1 else " ±>100 %"


def ratio(value: float | None, verdict: str | None = None) -> str:
    """Write e.g. `1.25x`, with a `?` if the verdict on it is undecided."""
    return number(value, ".2f", after="x?" if verdict == "undecided" else "x")


def error(value: float | None) -> str:
    """Write an error with two digits."""
    return NOTHING if value is None else f"{value:.1e}" if value else "0"


def share(value: float) -> str:
    """Write a share in per cent with two digits, so that a single value in a million is not shown as none."""
    return "0 %" if value == 0 else f"{value * 100:.2g} %"


def low_to_high(low: float, high: float, write: Callable[[float], str], word: str = "-") -> str:
    """Write e.g. `346.6-350.2`; `at most 350.2` for a lower end that reads as 0; `not bounded` for ends more than
    100 times apart; `-0.07 to 0.02` for a difference, which has a sign.
    """
    if low < 0:
        return f"{write(low)} to {write(high)}"
    # Two processes that differ twofold have ends a millionfold apart, which would read as a measurement.
    if low > 0 and high > 100 * low:
        return "not bounded"
    if low == 0 or write(low) == write(0.0):
        return f"at most {write(high)}"
    return f"{write(low)}{word}{write(high)}"


def change(value: float | None, interval: Interval | None) -> str:
    """Write e.g. `+24.9 % (+24.5 to +25.3)`; only the value if there is no interval. value and ends: ratios minus 1."""
    said = number(value, "+z.1f", 100, " %")
    if interval is None:
        return said
    # As of ratios, which are not below 0.
    low, high = (end + 1 for end in interval)
    return f"{said} ({low_to_high(low, high, lambda one: f'{(one - 1) * 100:+z.1f}', ' to ')})"
