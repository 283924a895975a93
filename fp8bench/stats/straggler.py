"""Finds the rank that holds up the others, if there is one.

Ranks that share their gradients meet in every step, so their steps take equally long, whichever is late. They differ in
what each does before: it waits for its data, and runs its forward pass. If ranks do not meet, their steps differ.
Medians over steps are compared, so that a single late step does not identify a rank.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from fp8bench.schema.rank import RankSamples
from fp8bench.stats.steps import longest_rank

LATE_SHARE = 0.05
"""Our choice: how much later than the others' median a straggler is, as a share of a step. Ranks of equal machines
differ by less: in the records of two H200s (results/) forward passes differ by at most 0.8 % of a step.
"""

FEWEST_STEPS = 10

MEASURES: Mapping[str, Callable[[RankSamples], Sequence[float] | None]] = {
    "waiting for data": lambda rank: rank.data_wait_s,
    "in its forward pass": lambda rank: rank.forward_s,
    "in its steps": lambda rank: rank.step_s,
}
"""In order of priority if two show the same delay: on a GPU, the first is the cause of the second."""


class Straggler(NamedTuple):
    """A rank that is later than the others in each step. share: by how much of a step. where: the part that is slow."""

    rank: int
    share: float
    where: str

    def __str__(self) -> str:
        return f"spends {self.share * 100:.0f} % of a step more than the other ranks {self.where}"


def straggler(samples: Sequence[RankSamples]) -> Straggler | None:
    """Return the straggler; None if no rank is later by LATE_SHARE of a step, or if unknown. samples: one per rank."""
    if len(samples) < 2 or min(len(rank.step_s) for rank in samples) < FEWEST_STEPS:
        return None
    step_s = median(longest_rank([rank.step_s for rank in samples]))
    found = []
    for where, of in MEASURES.items():
        each = {rank.rank: median(series) for rank in samples if (series := of(rank))}
        if len(each) == len(samples):
            latest = max(each, key=each.__getitem__)
            others = median(value for rank, value in each.items() if rank != latest)
            found.append(Straggler(latest, (each[latest] - others) / step_s, where))
    worst = max(found, key=lambda one: one.share, default=None)
    return worst if worst is not None and worst.share >= LATE_SHARE else None
