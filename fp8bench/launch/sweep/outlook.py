"""Forecasts what a sweep would do now, by the same order, forecasts and shares as the sweep itself. Runs nothing.

Batch sizes that are yet to be found depend on the leader, which only looks tell: they are no rows here, but the least
that the leader's sizes take is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fp8bench.launch.sweep.halving import Seen, finalists
from fp8bench.launch.sweep.looks import Wanted
from fp8bench.launch.sweep.search import Sweep, resumed, spending_of
from fp8bench.launch.sweep.spending import Spending
from fp8bench.schema.config import RunConfig

SIZES_OF_LEADER = 2
"""The number of looks that find the leader's largest batch with --batch-size auto, after its first: one that gives the
line, and one at its end.
"""


@dataclass(frozen=True)
class ExpectedLook:
    """A look that would be run. within: whether the budget allows it, as far as forecasts tell, in addition to the
    rounds that looks leave and SIZES_OF_LEADER of the cheapest looks.
    """

    look: Wanted
    seconds: float
    within: bool

    @property
    def config(self) -> RunConfig:
        """The configuration as in full rounds."""
        return self.look.config


@dataclass(frozen=True)
class Outlook:
    """The forecast of a sweep. looks: in order. done: the number of looks that are kept. round_turns: at most. round_s:
    of one turn of a round, the mean over all configurations. known: whether all times come from records.
    """

    sweep: Sweep
    looks: tuple[ExpectedLook, ...]
    done: int
    round_turns: int
    round_s: float
    known: bool

    @property
    def looks_s(self) -> float:
        """Seconds of all looks."""
        return sum(one.seconds for one in self.looks)

    @property
    def rounds_s(self) -> float:
        """Seconds of all rounds, at most."""
        return self.round_turns * self.round_s


def outlook(sweep: Sweep) -> Outlook:
    """Return the forecast. Runs and writes nothing. Raises UsageError as `resumed` does."""
    seen = resumed(sweep)
    spending, configs = spending_of(sweep, seen), [one.config for one in sweep.space.candidates]
    looks = _expected(spending, spending.wanted(seen), seen)
    done = sum(map(len, seen.rounds.values()))
    return Outlook(
        sweep,
        looks,
        len(seen.looks),
        max(0, sweep.rule.most_round_turns(len(looks) + len(seen.looks)) - done),
        fmean(map(spending.round_s, configs)) if configs else 0.0,
        all(map(spending.forecaster.is_known, configs)),
    )


def _expected(spending: Spending, looks: Sequence[Wanted], seen: Seen) -> tuple[ExpectedLook, ...]:
    """Return whether each look fits, in order; those that do not are passed over. The first looks are taken to lead."""
    found: list[ExpectedLook] = []
    leaders, spent_s = finalists(seen, spending.rule), 0.0
    # If the sweep continues an earlier one, the next size is already among the looks.
    sizes_s = 0.0
    if spending.rule.blank is not None and not seen.looks:
        sizes_s = SIZES_OF_LEADER * min((spending.look_s(look.config) for look in looks), default=0.0)
    for look in looks:
        seconds = spending.look_s(look.config)
        if look.late or look.leaves == "rounds":
            spent_s, sizes_s = spent_s + sizes_s, 0.0
        kept_s = spending.reserve_s(look, leaders, len(seen.looks) + sum(one.within for one in found))
        left_s = math.inf if spending.seconds is None else spending.seconds - spent_s
        missing = {one.config.mode_label for one in found if one.look.late and not one.within}
        within = spending.fits(look, kept_s, left_s) and not (look.waits and look.config.mode_label in missing)
        found.append(ExpectedLook(look, seconds, within))
        if within:
            leaders.append(look.config)
            spent_s += seconds
    return tuple(found)
