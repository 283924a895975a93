"""From every rank's step times to one series: the slowest rank first, statistics after.

DDP ranks meet at every all-reduce, so a group has taken as long as its slowest rank; pooling all ranks' times would
count one late rank as noise. What a group costs is its elapsed time, so the series that throughput, money and energy
rest on is that of the rank that took longest over all timed steps (`longest_rank`): its sum is the elapsed time. The
maximum over ranks, step by step (`slowest_rank`), would add up to more, since another rank is a little late each time;
it serves for parts of a step.
"""

from collections.abc import Sequence
from statistics import median

SLOW_STEP = 1.2
"""How many times its process's median a step takes from which on it is a slow one."""


def slowest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """per_rank: one sequence of step times a rank, all equally long. Returns the slowest rank's, step by step.

    Raises ValueError for no rank, or ranks that counted different steps.
    """
    if not per_rank:
        raise ValueError("no rank reported any step")
    return [max(step) for step in zip(*per_rank, strict=True)]


def longest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """per_rank: one sequence of step times a rank, all equally long. Returns that of the rank with the largest sum.

    Its sum is the group's elapsed time, and its mean the step time that throughput rests on. Raises ValueError for no
    rank, or ranks that counted different steps.
    """
    if not per_rank:
        raise ValueError("no rank reported any step")
    if len({len(steps) for steps in per_rank}) != 1:
        raise ValueError("the ranks counted different steps")
    return list(max(per_rank, key=sum))


def typical(samples: Sequence[float]) -> float:
    """The median. Raises statistics.StatisticsError when there is no sample."""
    return median(samples)


def slow_steps(samples: Sequence[float]) -> int:
    """How many took more than SLOW_STEP times their median. Raises statistics.StatisticsError for no sample."""
    limit = SLOW_STEP * typical(samples)
    return sum(sample > limit for sample in samples)
