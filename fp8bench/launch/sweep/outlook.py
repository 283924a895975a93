"""What a sweep would do, were it called now: by the same order, forecasts and shares as the sweep itself. Runs nothing.

Batch sizes that are yet to be found depend on who leads, which only looks tell: they are no rows here, but the least
that those of the leader take is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fp8bench.launch.sweep.halving import Seen, finalists
from fp8bench.launch.sweep.looks import Wanted
from fp8bench.launch.sweep.search import Sweep, resumed, spending_of
from fp8bench.launch.sweep.spending import Spending
from fp8bench.schema.config import RunConfig

SIZES_OF_LEADER = 2
"""Looks that find the largest batch of the leader with --batch-size auto, beside its first: one that gives the line,
and one at its end.
"""


@dataclass(frozen=True)
class ExpectedLook:
    """One that would be run. within: whether the budget allows it, as far as forecasts tell, beside the rounds that
    looks leave and SIZES_OF_LEADER of the cheapest looks.
    """

    look: Wanted
    seconds: float
    within: bool

    @property
    def config(self) -> RunConfig:
        """As in full rounds."""
        return self.look.config


@dataclass(frozen=True)
class Outlook:
    """looks: in their order. done: looks that are kept. round_turns: at most. round_s: of one turn of a round, the mean
    over all configurations. known: whether all times are those of records.
    """

    sweep: Sweep
    looks: tuple[ExpectedLook, ...]
    done: int
    round_turns: int
    round_s: float
    known: bool

    @property
    def looks_s(self) -> float:
        """Of all looks."""
        return sum(one.seconds for one in self.looks)

    @property
    def rounds_s(self) -> float:
        """Of all rounds, at most."""
        return self.round_turns * self.round_s


def outlook(sweep: Sweep) -> Outlook:
    """Runs and writes nothing. Raises UsageError as `resumed`."""
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
    """Whether each fits, in its order; who does not fit is passed over. Of looks without a result the first lead."""
    found: list[ExpectedLook] = []
    leaders, spent_s = finalists(seen, spending.rule), 0.0
    # Of a sweep that goes on, the next size is among the looks.
    sizes_s = 0.0
    if spending.rule.blank is not None and not seen.looks:
        sizes_s = SIZES_OF_LEADER * min((spending.look_s(look.config) for look in looks), default=0.0)
    for look in looks:
        seconds = spending.look_s(look.config)
        if look.late or look.leaves == "rounds":
            spent_s, sizes_s = spent_s + sizes_s, 0.0
        kept_s = spending.reserve_s(look, leaders, len(seen.looks) + sum(one.within for one in found))
        within = spending.seconds is None or spent_s + seconds + kept_s <= spending.seconds
        found.append(ExpectedLook(look, seconds, within))
        if within:
            leaders.append(look.config)
            spent_s += seconds
    return tuple(found)
