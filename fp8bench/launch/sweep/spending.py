"""Decides which turn is next within a budget. Pure, except that it remembers whether the looks' share is spent.

1. Looks, in their order (`looks`), as long as one fits in addition to what it leaves for rounds. Usual settings and
   batch sizes leave two rounds of each of two finalists, which give an interval and a verdict; at most half of the
   budget, so that looks have the other half, but never less than two rounds of the leader. The leader's first larger
   batch, which pays most, leaves two rounds of its own alone. All others leave every round of the two finalists as far
   as half of the budget goes, and never less than two. The second look leaves one round, because without it nothing is
   compared. What does not fit is passed over, because a cheaper look may fit; but nothing replaces that first larger
   batch.
2. Rounds, as far as they fit: the second best gets none while the best lacks one of its first two, and no other
   configuration gets one while the two finalists lack one.
3. What is left is spent on the first look that fits, and again on rounds, until nothing fits. A look that comes so late
   may have no rounds; the answer says so if it ranks above the winner.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8bench.launch.sweep.expected import Forecaster
from fp8bench.launch.sweep.halving import FINALISTS, INTERVAL_ROUNDS, Rule, Seen, Turn, finalists, next_round, standings
from fp8bench.launch.sweep.looks import FAIR_SHARE, Wanted, wanted
from fp8bench.launch.sweep.space import Candidate
from fp8bench.schema.config import RunConfig

MARGIN = 1.1
"""Factor on a turn's forecast when it is decided whether the turn fits: a host may be slower than its records say."""

MOST_RESERVED = 1 / 2
"""The largest share of the budget that is reserved for rounds."""


@dataclass
class Spending:
    """The spending of a call. seconds: its budget; None for no limit. as_look: returns a configuration in few steps."""

    candidates: Sequence[Candidate]
    rule: Rule
    forecaster: Forecaster
    as_look: Callable[[RunConfig], RunConfig]
    seconds: float | None
    looking: bool = True

    def next_turn(self, seen: Seen, spent_s: float) -> Turn | None:
        """Return the next turn; None if nothing is left or nothing fits. spent_s: of the budget."""
        left_s = math.inf if self.seconds is None else self.seconds - spent_s
        if self.looking:
            turn = self._look(seen, left_s, leaving=True)
            if turn is not None:
                return turn
            self.looking = False
        return self._round(seen, left_s) or self._look(seen, left_s, leaving=False)

    def wanted(self, seen: Seen) -> list[Wanted]:
        """Return all looks that are left, in order."""
        fair_s = math.inf if self.seconds is None else FAIR_SHARE * self.seconds
        return list(wanted(self.candidates, seen, self.rule, self.look_s, fair_s))

    def look_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a look."""
        return self.forecaster.turn_s(self.as_look(config))

    def round_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a round of a configuration that has been looked at by then."""
        return self.forecaster.turn_s(config, warm=True)

    def turn_s(self, turn: Turn) -> float:
        """Return the expected seconds of a turn."""
        return self.look_s(turn.config) if turn.stage == "look" else self.round_s(turn.config)

    def is_over(self, seen: Seen) -> bool:
        """Return whether nothing is left, however large the budget."""
        return standings(seen, self.rule).over and not self.wanted(seen)

    def fits(self, look: Wanted, kept_s: float, left_s: float) -> bool:
        """Return whether a look may begin. kept_s: what it leaves for rounds. left_s: of the budget."""
        return MARGIN * self.look_s(look.config) + kept_s <= left_s

    def reserve_s(self, look: Wanted, leaders: Sequence[RunConfig], before: int) -> float:
        """Return what a look leaves for rounds. leaders: of the looks before it, best first. before: their number."""
        if self.seconds is None or not before:
            return 0.0
        if before < FINALISTS:
            return self.round_s(look.config)
        least, most_s = min(self.rule.rounds, INTERVAL_ROUNDS), MOST_RESERVED * self.seconds
        if look.leaves == "interval":
            return least * self.round_s(look.config)
        two = [_at_size_of(look.config, one) for one in leaders[:FINALISTS]]
        if len(two) < FINALISTS and look.config not in two:
            two.append(look.config)
        a_round_s = sum(map(self.round_s, two))
        if look.leaves == "verdict":
            return max(least * self.round_s(two[0]), min(least * a_round_s, most_s))
        return max(least * a_round_s, min(self.rule.rounds * a_round_s, most_s))

    def _look(self, seen: Seen, left_s: float, leaving: bool) -> Turn | None:
        leaders = finalists(seen, self.rule)
        for look in self.wanted(seen):
            if look.waits:
                continue
            kept_s = self.reserve_s(look, leaders, len(seen.looks)) if leaving else 0.0
            if self.fits(look, kept_s, left_s):
                return Turn("look", look.config, len(seen.looks) + 1)
            if leaving and look.leaves == "interval":
                break
        return None

    def _round(self, seen: Seen, left_s: float) -> Turn | None:
        # Judge by the rounds that exist: a configuration that they drop lacks none.
        dropped = next_round(seen, self.rule, lambda _turn, _left: False)[0].dropped

        def allows(turn: Turn, left: Sequence[RunConfig]) -> bool:
            place = left.index(turn.config)
            better = left[: min(FINALISTS, place)]
            first = self.rule.rounds if place >= FINALISTS else min(self.rule.rounds, INTERVAL_ROUNDS)
            missing = {one: max(0, first - len(seen.rounds.get(one, ()))) for one in better if one not in dropped}
            first_s = sum(rounds * self.round_s(one) for one, rounds in missing.items())
            return MARGIN * self.round_s(turn.config) + first_s <= left_s

        return next_round(seen, self.rule, allows)[1]


def _at_size_of(look: RunConfig, finalist: RunConfig) -> RunConfig:
    """Return the finalist at the size that is looked at, if the look is of it: it is expected to go on there."""
    alike = finalist.model_copy(update={"batch_size": look.batch_size}) == look
    return look if alike else finalist
