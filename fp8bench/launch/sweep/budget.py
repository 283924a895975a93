"""What a sweep may spend, in time or in USD, and which turn is next. Pure.

Looks begin until half of the budget is spent, then rounds; what the rounds leave is spent on looks again. A turn begins
only if its forecast fits beside the rounds that give the best two an interval.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fp8bench.launch.forecast import MINUTE_S, Forecaster
from fp8bench.launch.sweep import halving
from fp8bench.launch.sweep.halving import FINALISTS, Rule, Seen, Standings, Turn, When, but_size
from fp8bench.launch.sweep.space import Candidates, Untried
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

UNITS_S = {"s": 1, "min": MINUTE_S, "h": SECONDS_PER_HOUR}

MARGIN = 1.1
"""Factor on a turn's forecast when it is decided whether the turn fits: a host may be slower than its records say."""

LOOKS_SHARE = 1 / 2
"""The share of the budget after which no look begins before the rounds."""


class Budget(NamedTuple):
    """What a call may spend. text: as the user gave it. usd_per_hour: of the machine; None if unknown."""

    seconds: float
    text: str
    usd_per_hour: float | None

    def usd(self, seconds: float) -> float | None:
        """Return what so many seconds cost."""
        return None if self.usd_per_hour is None else seconds / SECONDS_PER_HOUR * self.usd_per_hour


def parse_time(text: str) -> float:
    """Return the seconds of `10min`, `600s` or `2h`. Raises UsageError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2] not in UNITS_S or float(found[1]) == 0:
        raise UsageError(
            f"--budget: invalid value {text!r}: it is not a duration above 0 with a unit of time",
            f"Give, for example, --budget 10min; units are {', '.join(UNITS_S)}",
        )
    return float(found[1]) * UNITS_S[found[2]]


def budget(time: str | None, usd: float | None, usd_per_hour: float | None, default: str) -> Budget:
    """Return the budget. Raises UsageError for two, for an invalid amount, and for USD if no price is known."""
    if usd is None:
        return Budget(parse_time(time or default), time or default, usd_per_hour)
    if time is not None:
        raise UsageError("both --budget and --budget-usd were given", "Give one of them")
    if not 0 < usd < math.inf:
        raise UsageError(f"--budget-usd: invalid value {usd:g}: it buys nothing", "Give an amount above 0")
    if usd_per_hour is None:
        why = "--budget-usd needs the price of this machine, and none is known"
        raise UsageError(why, "Give it with --price, or use --budget")
    return Budget(usd / usd_per_hour * SECONDS_PER_HOUR, f"{usd:g} USD", usd_per_hour)


class Look(NamedTuple):
    """A look that is left. seconds: expected. when: its turn. comes: whether it comes before rounds. fits: whether it
    fits beside them.
    """

    config: RunConfig
    when: When
    seconds: float
    comes: bool
    fits: bool


@dataclass
class Spending:
    """The spending of a call. look: settings of a look that replace those of a full round. seconds: of the budget.
    forecaster: knows the records of `seen`, and others of this machine.
    """

    candidates: Candidates
    rule: Rule
    look: Mapping[str, Any]
    seconds: float
    seen: Seen
    forecaster: Forecaster

    @property
    def standings(self) -> Standings:
        """Who leads, who was dropped and why, and the round that is missing, however large the budget."""
        return halving.standings(self.seen, self.rule)

    @property
    def wanted(self) -> dict[RunConfig, When]:
        """All looks that are left, in order."""
        return halving.wanted(self.candidates, self.seen, self.rule, self.look_s)

    def take(self, turn: Turn, record: Record, took_s: float) -> None:
        """Note the result of a turn, and the seconds that it took."""
        self.seen.take(turn, record)
        self.forecaster.take(record, took_s)

    def looks(self, spent_s: float = 0.0) -> Iterator[Look]:
        """Yield all looks that are left, in order, if those before them that come and fit are run. spent_s: of the
        budget.
        """
        going_on, dropped = halving.contenders(self.seen, self.rule)
        before = [*going_on, *dropped]
        for config, when in self.wanted.items():
            # A comparison needs two looks, however small the budget.
            seconds, kept_s = self.look_s(config), self.round_s(config)
            if len(before) >= FINALISTS:
                others = [one for one in before if but_size(one) != but_size(config)]
                kept_s = self._lacking_s([config, *others[:1]])
            fits = MARGIN * seconds + kept_s <= self.seconds - spent_s
            look = Look(config, when, seconds, spent_s < LOOKS_SHARE * self.seconds, fits)
            yield look
            if look.comes and look.fits:
                before, spent_s = [*before, config], spent_s + seconds

    def next_turn(self, spent_s: float) -> Turn | None:
        """Return the next turn; None if nothing is left or nothing fits. spent_s: of the budget."""
        look = next((look for look in self.looks(spent_s) if look.fits), None)
        turn = Turn("look", look.config, len(self.seen.looks) + 1) if look is not None else None
        if look is not None and look.comes:
            return turn

        def allows(turn: Turn, left: Sequence[RunConfig]) -> bool:
            better = left[: min(FINALISTS, left.index(turn.config))]
            return MARGIN * self.round_s(turn.config) + self._lacking_s(better) <= self.seconds - spent_s

        return halving.standings(self.seen, self.rule, allows).turn or turn

    def look_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a look."""
        return self.forecaster.turn_s(config.model_copy(update=dict(self.look)))

    def round_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a round of a configuration that has been looked at by then."""
        return self.forecaster.turn_s(config, warm=True)

    def not_looked_at(self, budget: str) -> Untried:
        """Return first what would have come next, including batch sizes, then what needs no look, and why."""
        needless = [
            (one, halving.skipped(one, self.seen.looks)) for one in self.candidates if one not in self.seen.looks
        ]
        left = [(config, f"the budget of {budget}") for config in self.wanted]
        return left + [(config, why) for config, why in needless if why is not None]

    def _lacking_s(self, finalists: Sequence[RunConfig]) -> float:
        """Return the seconds of the rounds that finalists lack to have an interval, or what was requested."""
        fewest, missing_s = min(self.rule.rounds, halving.INTERVAL_ROUNDS), 0.0
        for config in finalists:
            rounds = self.seen.rounds.get(config, [])
            if all(record.status == "ok" for record in rounds):
                missing_s += max(0, fewest - len(rounds)) * self.round_s(config)
        return missing_s
