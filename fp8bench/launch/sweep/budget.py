"""What a sweep may spend, in time or in USD; how long a turn is expected to take; and which turn is next. Pure.

A configuration that was run on this machine takes what its records tell: the start of processes, its steps, and other
time, above all torch.compile, whose caches are warm by then. One that was never run is compiled with cold caches: the
longest compile of its mode on record counts, else what was measured elsewhere; its steps are those of the nearest
record of its mode, scaled by the batch size. Without such a record, only what no turn goes without counts. What the
turns of this call took beyond their forecasts, as on a busy host, is added to all.

Looks begin until half of the budget is spent, then rounds; what the rounds leave is spent on looks again. A turn begins
only if its forecast fits beside the rounds that give the best two an interval.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from fp8bench.launch.forecast import (
    MINUTE_S,
    START_UP_S,
    WARM,
    all_steps_s,
    beyond_steps,
    cold_s,
    is_compiled,
    same_work,
)
from fp8bench.launch.sweep.halving import (
    FINALISTS,
    INTERVAL_ROUNDS,
    Rule,
    Seen,
    Standings,
    Turn,
    When,
    but_size,
    contenders,
    skipped,
    standings,
    wanted,
)
from fp8bench.launch.sweep.space import AXES, Candidates, Untried
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


@dataclass(frozen=True)
class Took:
    """What one process on record took. once_s: time other than its steps, its start and torch.compile."""

    config: RunConfig
    step_s: float
    once_s: float
    compile_s: float

    def turn_s(self, config: RunConfig, compile_s: float, longer: float = 1.0) -> float:
        """Return the time of a turn with a configuration's steps. longer: how many times as long a step takes there."""
        return START_UP_S[config.device] + self.once_s + compile_s + all_steps_s(config, self.step_s * longer)


class Forecaster:
    """Forecasts turns by records of this machine and its software."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._took: list[Took] = []
        self._alone: dict[tuple[RunConfig, bool], float] = {}
        self._beyond_s: list[float] = []
        for record in records:
            self._add(record)

    def take(self, record: Record, took_s: float) -> None:
        """Add a record. The time its turn took beyond its forecast is added to all forecasts."""
        self._alone.clear()
        took = self._add(record)
        if took is not None:
            self._beyond_s.append(took_s - took.turn_s(took.config, took.compile_s))

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        """Return the expected seconds of one turn of the configuration. warm: whether it has been looked at by then."""
        if (config, warm) not in self._alone:
            self._alone[config, warm] = self._alone_s(config, warm)
        beyond_s = fmean(self._beyond_s) if self._beyond_s else 0.0
        return max(self._alone[config, warm] + beyond_s, config.min_time_s)

    def is_known(self, config: RunConfig) -> bool:
        """Return whether a record of the same work tells the time, not only ones of its mode executed differently."""
        return any(same_work(took.config, config) for took in self._took)

    def _add(self, record: Record) -> Took | None:
        if record.status != "ok" or record.summary is None or record.config is None:
            return None
        step_s = record.summary.step_time_s
        beyond_s = beyond_steps(record, step_s)
        # The compiler's own count, part of which may have been before the warm-up.
        compile_s = min((record.evidence.compile.seconds if record.evidence else None) or 0.0, beyond_s)
        self._took.append(Took(record.config, step_s, beyond_s - compile_s, compile_s))
        return self._took[-1]

    def _alone_s(self, config: RunConfig, warm: bool) -> float:
        # At any batch size and executed in any way; the latest that differs in the fewest settings is the nearest.
        any_axis = {name: getattr(config, name) for name in AXES}
        of_mode = [took for took in self._took if same_work(took.config.model_copy(update=any_axis), config)]
        ran = [took for took in of_mode if same_work(took.config, config)]
        # Of several processes of the mode, the first took longest.
        known_s = max((took.compile_s for took in of_mode), default=0.0)
        compile_s = (known_s or cold_s(config)) if is_compiled(config) else 0.0
        if ran:
            once_more_s = min(ran[-1].compile_s, WARM.of(config) * compile_s)
            return ran[-1].turn_s(config, ran[-1].compile_s if len(ran) > 1 else once_more_s)
        compile_s *= WARM.of(config) if warm else 1.0
        if not of_mode:
            return START_UP_S[config.device] + compile_s + config.min_time_s

        def unlike(took: Took) -> int:
            return sum(getattr(took.config, name) != getattr(config, name) for name in AXES)

        near = min(reversed(of_mode), key=unlike)
        # The time of a step is close to linear in its batch.
        return near.turn_s(config, compile_s, config.batch_size / near.config.batch_size)


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
        return standings(self.seen, self.rule)

    def take(self, turn: Turn, record: Record, took_s: float) -> None:
        """Note the result of a turn."""
        self.seen.take(turn, record)
        self.forecaster.take(record, took_s)

    def next_turn(self, spent_s: float) -> Turn | None:
        """Return the next turn; None if nothing is left or nothing fits. spent_s: of the budget."""
        before = self.best_first()
        fitting = (config for config in self.wanted() if self.fits(config, before, spent_s))
        look = next((Turn("look", config, len(before) + 1) for config in fitting), None)
        if look is not None and self.looks_come(spent_s):
            return look

        def allows(turn: Turn, left: Sequence[RunConfig]) -> bool:
            better = left[: min(FINALISTS, left.index(turn.config))]
            return MARGIN * self.round_s(turn.config) + self._lacking_s(better) <= self.seconds - spent_s

        return standings(self.seen, self.rule, allows).turn or look

    def best_first(self) -> list[RunConfig]:
        """Return all configurations that were looked at, those that may get rounds first, by their looks."""
        going_on, dropped = contenders(self.seen, self.rule)
        return [*going_on, *dropped]

    def looks_come(self, spent_s: float) -> bool:
        """Return whether looks come before rounds."""
        return spent_s < LOOKS_SHARE * self.seconds

    def fits(self, config: RunConfig, before: Sequence[RunConfig], spent_s: float) -> bool:
        """Return whether a look may begin. before: the configurations that were looked at before it, best first."""
        # A comparison needs two looks, however small the budget.
        kept_s = self.round_s(config)
        if len(before) >= FINALISTS:
            others = [one for one in before if but_size(one) != but_size(config)]
            kept_s = self._lacking_s([config, *others[:1]])
        return MARGIN * self.look_s(config) + kept_s <= self.seconds - spent_s

    def wanted(self) -> dict[RunConfig, When]:
        """Return all looks that are left, in order."""
        return wanted(self.candidates, self.seen, self.rule, self.look_s)

    def as_look(self, config: RunConfig) -> RunConfig:
        """Return the configuration in few steps."""
        return config.model_copy(update=dict(self.look))

    def look_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a look."""
        return self.forecaster.turn_s(self.as_look(config))

    def round_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a round of a configuration that has been looked at by then."""
        return self.forecaster.turn_s(config, warm=True)

    def not_looked_at(self, budget: str) -> Untried:
        """Return first what would have come next, including batch sizes, then what needs no look, and why."""
        needless = ((one, skipped(one, self.seen.looks)) for one in self.candidates if one not in self.seen.looks)
        left = [(config, f"the budget of {budget}") for config in self.wanted()]
        return left + [(config, why) for config, why in needless if why is not None]

    def _lacking_s(self, finalists: Sequence[RunConfig]) -> float:
        """Return the seconds of the rounds that finalists lack to have an interval, or what was requested."""
        missing_s = 0.0
        for config in finalists:
            rounds = self.seen.rounds.get(config, [])
            if all(record.status == "ok" for record in rounds):
                fewest = min(self.rule.rounds, INTERVAL_ROUNDS)
                missing_s += max(0, fewest - len(rounds)) * self.round_s(config)
        return missing_s
