"""What a sweep may spend, in time or in USD, and which budgets are too small."""

import re
from dataclasses import dataclass

from fp8bench.launch.forecast import MINUTE_S, duration
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.schema.errors import UsageError

UNITS_S = {"s": 1, "min": MINUTE_S, "h": SECONDS_PER_HOUR}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_time(text: str) -> float:
    """Return the seconds of `10min`, `600s` or `2h`. Raises UsageError for anything else."""
    found = _TIME.fullmatch(text)
    units = ", ".join(UNITS_S)
    if found is None:
        raise UsageError(f"--budget: invalid value {text!r}: it is not a duration", "Give, for example, --budget 10min")
    number, unit = float(found[1]), found[2]
    if unit not in UNITS_S:
        what = f"unknown unit of time {unit!r}" if unit else "it has no unit of time"
        raise UsageError(f"--budget: invalid value {text!r}: {what}", f"Units are {units}: --budget 10min")
    if number <= 0:
        raise UsageError(f"--budget: invalid value {text!r}: it must be above 0", "Give, for example, --budget 10min")
    return number * UNITS_S[unit]


@dataclass(frozen=True)
class Budget:
    """What a call may spend. seconds: None for no limit. text: as the user gave it. usd_per_hour: of the machine."""

    seconds: float | None
    text: str = "no limit"
    usd_per_hour: float | None = None

    def in_words(self, seconds: float) -> str:
        """Return a time in the unit of the budget: `0.12 USD (108 s)` for a budget in USD."""
        if not self.text.endswith("USD") or self.usd_per_hour is None:
            return duration(seconds)
        return f"{seconds / SECONDS_PER_HOUR * self.usd_per_hour:.2f} USD ({duration(seconds)})"


def budget(time: str | None, usd: float | None, usd_per_hour: float | None, default: str) -> Budget:
    """Return the budget. Raises UsageError for two, for an invalid amount, and for USD if no price is known."""
    if usd is None:
        text = time or default
        return Budget(parse_time(text), text, usd_per_hour)
    if time is not None:
        raise UsageError("both --budget and --budget-usd were given", "Give one of them")
    if not 0 < usd < float("inf"):
        raise UsageError(f"--budget-usd: invalid value {usd:g}: it buys nothing", "Give an amount above 0")
    if usd_per_hour is None:
        raise UsageError(
            "--budget-usd needs the price of this machine, and none is known", "Give it with --price, or use --budget"
        )
    return Budget(usd / usd_per_hour * SECONDS_PER_HOUR, f"{usd:g} USD", usd_per_hour)


def require_enough(budget: Budget, look_s: float, round_s: float) -> None:
    """Raise UsageError if one configuration could not even be looked at and measured in one round."""
    least = look_s + round_s
    if budget.seconds is not None and budget.seconds < least:
        raise UsageError(
            f"a budget of {budget.text} is too small for one run: a look and a round of one configuration take about "
            f"{budget.in_words(least)}",
            "Give at least that, or fewer --steps and a shorter --min-time",
        )
