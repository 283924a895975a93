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


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """An interval for the median from order statistics; None where there are too few samples for one.

    The ranks (l, n + 1 - l) of the sorted samples cover the median with probability 1 - 2 * B(l - 1; n, 1/2), whatever
    the distribution (Conover, Practical Nonparametric Statistics, section 3.2); the narrowest pair that covers
    `confidence` is taken. It supposes independent samples and speaks of this run's steps only, not of another run's.
    """
    n = len(samples)
    tail = (1 - confidence) / 2
    term, cumulative, lower = 1, 0, 0
    for i in range(n // 2):
        # term is the binomial coefficient (n over i); integers stay exact where 2**-n would vanish.
        cumulative += term
        if cumulative / 2**n > tail:
            break
        lower = i + 1
        term = term * (n - i) // (i + 1)
    if lower == 0:
        return None
    ordered = sorted(samples)
    return ordered[lower - 1], ordered[n - lower]


def typical(samples: Sequence[float]) -> float:
    """The median. Raises statistics.StatisticsError when there is no sample."""
    return median(samples)
