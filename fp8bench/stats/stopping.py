"""When `--precision` has been reached: of all modes at once, and not before a rare state would have been seen.

Two ways to stop too soon are known, and both make intervals that are too sure (simulated in benchmarks/simulate.py):
  to look after each of the first rounds, where three or five processes that happen to agree end the search: an interval
  knows nothing of a slow state that none of them had. So nothing stops before as many rounds as show a state that one
  process in five has (`unseen`);
  to stop each mode when its own interval happens to be narrow, and go on with the others: then modes that are compared
  were not measured alike. So all go on until the last one is certain.
Rounds come in pairs, there and back, and only a whole pair is looked at.
"""

from collections.abc import Sequence

from fp8bench.stats.estimate import Estimate
from fp8bench.stats.unseen import processes_to_see

SEEN_SHARE = 0.2
FEWEST_ROUNDS = processes_to_see(SEEN_SHARE)
"""14: of so many processes at least one shows a state that one in five has, at 95 % confidence."""


def reached(estimates: Sequence[Estimate | None], precision: float) -> bool:
    """Whether the half-width of every interval, over its middle, is at most `precision` (0.01 is 1 %), and every mode
    has had FEWEST_ROUNDS processes, and an even number. None, for a mode of which nothing is known: no.
    """
    return all(
        found is not None
        and found.processes >= FEWEST_ROUNDS
        and found.processes % 2 == 0
        and found.half_width_share is not None
        and found.half_width_share <= precision
        for found in estimates
    )
