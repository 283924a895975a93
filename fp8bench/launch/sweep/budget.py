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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

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
    Rule,
    Seen,
    Turn,
    Wanted,
    best_first,
    but_size,
    next_round,
    skipped,
    wanted,
)
from fp8bench.launch.sweep.space import AXES, Candidate, Untried
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

UNITS_S = {"s": 1, "min": MINUTE_S, "h": SECONDS_PER_HOUR}

MARGIN = 1.1
"""Factor on a turn's forecast when it is decided whether the turn fits: a host may be slower than its records say."""

LOOKS_SHARE = 1 / 2
"""The share of the budget after which no look begins before the rounds."""


def parse_time(text: str) -> float:
    """Return the seconds of `10min`, `600s` or `2h`. Raises UsageError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2] not in UNITS_S or float(found[1]) == 0:
        units = ", ".join(UNITS_S)
        raise UsageError(
            f"--budget: invalid value {text!r}: it is not a duration above 0 with a unit of time",
            f"Give, for example, --budget 10min; units are {units}",
        )
    return float(found[1]) * UNITS_S[found[2]]


@dataclass(frozen=True)
class Budget:
    """What a call may spend. seconds: None for no limit. text: as the user gave it. usd_per_hour: of the machine."""

    seconds: float | None
    text: str = "no limit"
    usd_per_hour: float | None = None


def budget(time: str | None, usd: float | None, usd_per_hour: float | None, default: str) -> Budget:
    """Return the budget. Raises UsageError for two, for an invalid amount, and for USD if no price is known."""
    if usd is None:
        text = time or default
        return Budget(parse_time(text), text, usd_per_hour)
    for wrong, why, remedy in (
        (time is not None, "both --budget and --budget-usd were given", "Give one of them"),
        (not 0 < usd < math.inf, f"--budget-usd: invalid value {usd:g}: it buys nothing", "Give an amount above 0"),
    ):
        if wrong:
            raise UsageError(why, remedy)
    if usd_per_hour is None:
        why = "--budget-usd needs the price of this machine, and none is known"
        raise UsageError(why, "Give it with --price, or use --budget")
    return Budget(usd / usd_per_hour * SECONDS_PER_HOUR, f"{usd:g} USD", usd_per_hour)


@dataclass(frozen=True)
class Took:
    """What one process on record took. once_s: time other than its steps, its start and torch.compile."""

    step_s: float
    once_s: float
    compile_s: float

    @staticmethod
    def of(record: Record) -> "Took":
        """Return what the process of a record took."""
        step_s = record.summary.step_time_s if record.summary else 0.0
        beyond_s = beyond_steps(record, step_s)
        # The compiler's own count, part of which may have been before the warm-up.
        compile_s = min((record.evidence.compile.seconds if record.evidence else None) or 0.0, beyond_s)
        return Took(step_s, beyond_s - compile_s, compile_s)

    def turn_s(self, config: RunConfig, compile_s: float, longer: float = 1.0) -> float:
        """Return the time of a turn with a configuration's steps. longer: how many times as long a step takes there."""
        return START_UP_S[config.device] + self.once_s + compile_s + all_steps_s(config, self.step_s * longer)


@dataclass
class Forecaster:
    """Forecasts turns. kept: records of this machine and its software, oldest first."""

    kept: list[Record]
    known: dict[tuple[RunConfig, bool], float] = field(default_factory=dict)
    read: dict[str, Took] = field(default_factory=dict)
    beyond_s: list[float] = field(default_factory=list)

    def take(self, record: Record, took_s: float) -> None:
        """Add a record. The time its turn took beyond its forecast is added to all forecasts."""
        self.kept.append(record)
        self.known.clear()
        if record.status == "ok" and record.config is not None:
            took = self._took(record)
            self.beyond_s.append(took_s - took.turn_s(record.config, took.compile_s))

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        """Return the expected seconds of one turn of the configuration. warm: whether it has been looked at by then."""
        if (config, warm) not in self.known:
            self.known[config, warm] = self._alone_s(config, warm)
        beyond_s = fmean(self.beyond_s) if self.beyond_s else 0.0
        return max(self.known[config, warm] + beyond_s, config.min_time_s)

    def is_known(self, config: RunConfig) -> bool:
        """Return whether a record of the same work tells the time, not only ones of its mode executed differently."""
        return bool(self._alike(config))

    def _alone_s(self, config: RunConfig, warm: bool) -> float:
        # At any batch size and executed in any way; the latest that differs in the fewest settings is the nearest.
        of_mode, ran = self._alike(config, any_axis=True), self._alike(config)
        known_s = [self._took(record).compile_s for record in of_mode]
        # Of several processes of the mode, the first took longest.
        compile_s = (max(known_s, default=0.0) or cold_s(config)) if is_compiled(config) else 0.0
        if ran:
            last = self._took(ran[-1])
            once_more_s = min(last.compile_s, WARM.of(config) * compile_s)
            return last.turn_s(config, last.compile_s if len(ran) > 1 else once_more_s)
        compile_s *= WARM.of(config) if warm else 1.0
        if not of_mode:
            return START_UP_S[config.device] + compile_s + config.min_time_s
        near = min(
            reversed(of_mode),
            key=lambda record: sum(getattr(record.config, name) != getattr(config, name) for name in AXES),
        )
        # The time of a step is close to linear in its batch.
        return self._took(near).turn_s(config, compile_s, config.batch_size / near.what.batch_size)

    def _alike(self, config: RunConfig, any_axis: bool = False) -> list[Record]:
        """Return the records of the same work, or of the same but for what `sweep` varies within a mode."""
        free = {name: getattr(config, name) for name in AXES} if any_axis else {}
        ok = [(one, one.config) for one in self.kept if one.status == "ok" and one.summary is not None]
        return [one for one, ran in ok if ran is not None and same_work(ran.model_copy(update=free), config)]

    def _took(self, record: Record) -> Took:
        if record.run_id not in self.read:
            self.read[record.run_id] = Took.of(record)
        return self.read[record.run_id]


@dataclass
class Spending:
    """The spending of a call. seconds: its budget; None for no limit. as_look: returns a configuration in few steps."""

    candidates: Sequence[Candidate]
    rule: Rule
    forecaster: Forecaster
    as_look: Callable[[RunConfig], RunConfig]
    seconds: float | None

    def next_turn(self, seen: Seen, spent_s: float) -> Turn | None:
        """Return the next turn; None if nothing is left or nothing fits. spent_s: of the budget."""
        before = best_first(seen, self.rule)
        fitting = (look.config for look in self.wanted(seen) if self.fits(look.config, before, seen, spent_s))
        look = next((Turn("look", config, len(before) + 1) for config in fitting), None)
        return look if look is not None and self.looks_come(spent_s) else self._round(seen, spent_s) or look

    def looks_come(self, spent_s: float) -> bool:
        """Return whether looks come before rounds."""
        return self.seconds is None or spent_s < LOOKS_SHARE * self.seconds

    def fits(self, config: RunConfig, before: Sequence[RunConfig], seen: Seen, spent_s: float) -> bool:
        """Return whether a look may begin. before: the configurations that were looked at before it, best first."""
        # A comparison needs two looks, however small the budget.
        kept_s = self.round_s(config)
        if len(before) >= FINALISTS:
            others = [one for one in before if but_size(one) != but_size(config)]
            kept_s = self._lacking_s([config, *others[:1]], seen)
        return MARGIN * self.look_s(config) + kept_s <= self._left_s(spent_s)

    def wanted(self, seen: Seen) -> list[Wanted]:
        """Return all looks that are left, in order."""
        return wanted(self.candidates, seen, self.rule, self.look_s)

    def look_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a look."""
        return self.forecaster.turn_s(self.as_look(config))

    def round_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a round of a configuration that has been looked at by then."""
        return self.forecaster.turn_s(config, warm=True)

    def is_over(self, seen: Seen) -> bool:
        """Return whether nothing is left, however large the budget."""
        return next_round(seen, self.rule)[0].over and not self.wanted(seen)

    def not_looked_at(self, seen: Seen, budget: str) -> list[Untried]:
        """Return first what would have come next, including batch sizes, then what needs no look, and why."""
        found = [Untried(look.config, f"the budget of {budget}") for look in self.wanted(seen)]
        for one in self.candidates:
            needless = None if one.config in seen.looks else skipped(one, seen.looks)
            found += [] if needless is None else [Untried(one.config, needless)]
        return found

    def _round(self, seen: Seen, spent_s: float) -> Turn | None:
        def allows(turn: Turn, left: Sequence[RunConfig]) -> bool:
            better = left[: min(FINALISTS, left.index(turn.config))]
            return MARGIN * self.round_s(turn.config) + self._lacking_s(better, seen) <= self._left_s(spent_s)

        return next_round(seen, self.rule, allows)[1]

    def _lacking_s(self, finalists: Sequence[RunConfig], seen: Seen) -> float:
        """Return the seconds of the rounds that finalists lack to have an interval."""
        missing_s = 0.0
        for config in finalists:
            rounds = seen.rounds.get(config, [])
            if all(record.status == "ok" for record in rounds):
                missing_s += max(0, self.rule.fewest - len(rounds)) * self.round_s(config)
        return missing_s

    def _left_s(self, spent_s: float) -> float:
        return math.inf if self.seconds is None else self.seconds - spent_s
