"""Which turn is next within a budget. Pure, but that it remembers whether the looks' share is spent.

1. Looks, in their order (`looks`), as long as one fits beside what it leaves for rounds. Usual settings and batch sizes
   leave two rounds of each of two finalists, which give an interval and a verdict; at most half of the budget, so that
   looks have the other half, but never less than two of the leader. The first larger batch of the leader, which pays
   most, leaves two of its own alone. All others leave every round of the two finalists as far as half of the budget
   goes, and never less than two. The second of all looks leaves one round, since without it nothing is compared. What
   does not fit is passed over, since a cheaper one may fit; but nothing takes the place of that first larger batch.
2. Rounds, as far as they fit: the second best has none that the best one lacks for its first two, and nobody else has
   one that the two finalists lack.
3. What is left goes on with the first look that fits, and again with rounds, until nothing does. A look that comes so
   late may have no rounds; the answer says so where it ranks above the winner.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8bench.launch.sweep.expected import Forecaster
from fp8bench.launch.sweep.halving import FINALISTS, INTERVAL_ROUNDS, Rule, Seen, Turn, finalists, next_round, standings
from fp8bench.launch.sweep.looks import FAIR_SHARE, Wanted, wanted
from fp8bench.launch.sweep.space import Candidate
from fp8bench.schema.config import RunConfig

MOST_RESERVED = 1 / 2
"""Of the budget, for rounds."""


@dataclass
class Spending:
    """seconds: the budget of this call; None: no end. as_look: a configuration in few steps."""

    candidates: Sequence[Candidate]
    rule: Rule
    forecaster: Forecaster
    as_look: Callable[[RunConfig], RunConfig]
    seconds: float | None
    looking: bool = True

    def next_turn(self, seen: Seen, spent_s: float) -> Turn | None:
        """None: nothing is left, or nothing that fits. spent_s: of the budget."""
        left_s = math.inf if self.seconds is None else self.seconds - spent_s
        if self.looking:
            turn = self._look(seen, left_s, leaving=True)
            if turn is not None:
                return turn
            self.looking = False
        return self._round(seen, left_s) or self._look(seen, left_s, leaving=False)

    def wanted(self, seen: Seen) -> list[Wanted]:
        """All looks that are left, in their order."""
        fair_s = math.inf if self.seconds is None else FAIR_SHARE * self.seconds
        return list(wanted(self.candidates, seen, self.rule, self.look_s, fair_s))

    def look_s(self, config: RunConfig) -> float:
        """What a look takes."""
        return self.forecaster.turn_s(self.as_look(config))

    def round_s(self, config: RunConfig) -> float:
        """What a round takes of what has been looked at by then."""
        return self.forecaster.turn_s(config, warm=True)

    def turn_s(self, turn: Turn) -> float:
        """What a turn takes."""
        return self.look_s(turn.config) if turn.stage == "look" else self.round_s(turn.config)

    def is_over(self, seen: Seen) -> bool:
        """Whether nothing is left, however large the budget."""
        return standings(seen, self.rule).over and not self.wanted(seen)

    def reserve_s(self, look: Wanted, leaders: Sequence[RunConfig], before: int) -> float:
        """What a look leaves for rounds. leaders: the best of those before it first. before: how many these are."""
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
            kept_s = self.reserve_s(look, leaders, len(seen.looks)) if leaving else 0.0
            if self.look_s(look.config) + kept_s <= left_s:
                return Turn("look", look.config, len(seen.looks) + 1)
            if leaving and look.leaves == "interval":
                break
        return None

    def _round(self, seen: Seen, left_s: float) -> Turn | None:
        # By the rounds that there are: who is dropped by them lacks none.
        dropped = next_round(seen, self.rule, lambda _turn, _left: False)[0].dropped

        def allows(turn: Turn, left: Sequence[RunConfig]) -> bool:
            place = left.index(turn.config)
            better = left[: min(FINALISTS, place)]
            first = self.rule.rounds if place >= FINALISTS else min(self.rule.rounds, INTERVAL_ROUNDS)
            missing = {one: max(0, first - len(seen.rounds.get(one, ()))) for one in better if one not in dropped}
            first_s = sum(rounds * self.round_s(one) for one, rounds in missing.items())
            return self.round_s(turn.config) + first_s <= left_s

        return next_round(seen, self.rule, allows)[1]


def _at_size_of(look: RunConfig, finalist: RunConfig) -> RunConfig:
    """A finalist whose other size is looked at is expected to go on at that size."""
    alike = finalist.model_copy(update={"batch_size": look.batch_size}) == look
    return look if alike else finalist
