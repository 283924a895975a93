"""From every rank's step times to one number with its interval.

DDP ranks meet at every all-reduce, so a step has lasted as long as its slowest rank: the maximum over ranks is taken
first, step by step, and statistics after. (Pooling all ranks' times would count one late rank as noise.)
"""

from collections.abc import Sequence
from statistics import median


def slowest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """per_rank: one sequence of step times a rank, all equally long. Returns the slowest rank's, step by step.

    Raises ValueError for no rank, or ranks that counted different steps.
    """
    if not per_rank:
        raise ValueError("no rank reported any step")
    return [max(step) for step in zip(*per_rank, strict=True)]


def typical(samples: Sequence[float]) -> float:
    """The median. Raises statistics.StatisticsError when there is no sample."""
    return median(samples)
