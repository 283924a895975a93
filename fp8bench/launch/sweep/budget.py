"""What a sweep may spend, in time or in USD, and what the next turn is expected to take.

A turn's time is that of records of the same work (`launch.forecast`), those of the sweep's own looks above all; of a
configuration without any, those of the same mode executed otherwise, and at first only what every start takes. To start
processes takes longer on a busy host, which the turns of this call show.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from fp8bench.launch.forecast import MINUTE_S, START_UP_S, duration, turn_s
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

UNITS_S = {"s": 1, "min": MINUTE_S, "h": SECONDS_PER_HOUR}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_time(text: str) -> float:
    """Seconds of `10min`, `600s` or `2h`. Raises UsageError."""
    found = _TIME.fullmatch(text)
    units = ", ".join(UNITS_S)
    if found is None:
        raise UsageError(f"--budget: invalid value {text!r}: it is no time", "Say, for example, --budget 10min")
    number, unit = float(found[1]), found[2]
    if unit not in UNITS_S:
        what = f"unknown unit of time {unit!r}" if unit else "it has no unit of time"
        raise UsageError(f"--budget: invalid value {text!r}: {what}", f"Units are {units}: --budget 10min")
    if number <= 0:
        raise UsageError(f"--budget: invalid value {text!r}: it is no time at all", "Say, for example, --budget 10min")
    return number * UNITS_S[unit]


@dataclass(frozen=True)
class Budget:
    """seconds: of this call; None: no end. text: as the user gave it. usd_per_hour: of the machine."""

    seconds: float | None
    text: str = "no limit"
    usd_per_hour: float | None = None

    def in_words(self, seconds: float) -> str:
        """A time as the budget was given: `0.12 USD (108 s)` of one in USD."""
        if not self.text.endswith("USD") or self.usd_per_hour is None:
            return duration(seconds)
        return f"{seconds / SECONDS_PER_HOUR * self.usd_per_hour:.2f} USD ({duration(seconds)})"


def budget(time: str | None, usd: float | None, usd_per_hour: float | None, default: str) -> Budget:
    """Raises UsageError for both, for an amount that is none, and for USD where the machine has no price."""
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


@dataclass
class Forecaster:
    """kept: records of this machine and its software, oldest first; `whole` gives one with its samples."""

    kept: list[Record]
    whole: Callable[[Record], Record]
    known: dict[RunConfig, float] = field(default_factory=dict)
    beyond_s: list[float] = field(default_factory=list)

    def take(self, record: Record, took_s: float) -> None:
        """One more record, whole, and what its turn took: by so much more or less all others are expected to take."""
        self.kept.append(record)
        self.known.clear()
        if record.status == "ok" and record.config is not None:
            self.beyond_s.append(took_s - self._alone_s(record.config))

    def turn_s(self, config: RunConfig) -> float:
        """What one turn of it is expected to take, seconds."""
        beyond_s = fmean(self.beyond_s) if self.beyond_s else 0.0
        return max(self._alone_s(config) + beyond_s, config.min_time_s)

    def is_known(self, config: RunConfig) -> bool:
        """Whether a record tells how long it takes, and not only those of the same mode executed otherwise, or none."""
        return turn_s(config, self.kept, self.whole) is not None

    def _alone_s(self, config: RunConfig) -> float:
        """By records alone."""
        if config not in self.known:
            found = turn_s(config, self.kept, self.whole)
            self.known[config] = self._unknown_s(config) if found is None else found
        return self.known[config]

    def _unknown_s(self, config: RunConfig) -> float:
        """By the same mode at another size or execution, if there is one, else what no turn goes without."""
        alike = [
            one.config for one in self.kept if one.status == "ok" and one.config and one.config.mode == config.mode
        ]
        least = START_UP_S[config.device] + config.min_time_s
        if not alike:
            return least
        free = {name: getattr(config, name) for name in ("steps", "warmup", "min_time_s")}
        found = turn_s(alike[-1].model_copy(update=free), self.kept, self.whole)
        return least if found is None else max(found, least)


def reserve_s(forecaster: Forecaster, finalists: Sequence[RunConfig], rounds: int, seconds: float | None) -> float:
    """What looks must leave for the full rounds of the finalists: at most half of the budget."""
    if seconds is None:
        return 0.0
    return min(rounds * sum(map(forecaster.turn_s, finalists)), seconds / 2)


def require_enough(budget: Budget, look_s: float, round_s: float) -> None:
    """Raises UsageError where not even one configuration could be looked at and measured in one round."""
    least = look_s + round_s
    if budget.seconds is not None and budget.seconds < least:
        raise UsageError(
            f"a budget of {budget.text} is too small for one run: a look and a round of one configuration take about "
            f"{budget.in_words(least)}",
            "Give at least that, or fewer --steps and a shorter --min-time",
        )
