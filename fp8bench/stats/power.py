"""What a check of so many rounds can find, and how many rounds find a given slow-down.

With h the half-width of the ratio's interval on a logarithmic scale, a slow-down is found from (1 + allowed) * exp(h)
on, and an unchanged step passes if exp(h) is at most 1 + allowed. h shrinks with the rounds R on either side as
t * sd / sqrt(R): sd is the spread of the logarithm of process means, of both sides together, and t the quantile of
Student's t for Welch's degrees of freedom.
"""

import math

from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import Regression
from fp8bench.stats.student import t_quantile

MOST_ROUNDS = 1000


def smallest_found(judged: Regression, allowed: float) -> float | None:
    """Return the smallest slow-down that would have been called a regression, as a share; None with one process on a
    side. allowed: as in `ratio.regression`.
    """
    return None if judged.interval is None else (1 + allowed) * judged.value / judged.interval[0] - 1


def rounds_to_find(ours: Estimate, reference: Estimate, allowed: float) -> int | None:
    """Return how many rounds on either side make the interval no wider than `allowed` to a side; None if the spread of
    processes is unknown, or if MOST_ROUNDS are not enough.
    """
    if ours.spread is None or reference.spread is None:
        return None
    a, b = ours.spread**2, reference.spread**2
    per_round = (a + b) ** 2 / (a**2 + b**2) if a + b > 0 else 1.0
    for rounds in range(2, MOST_ROUNDS + 1):
        if t_quantile(per_round * (rounds - 1)) * math.sqrt((a + b) / rounds) <= math.log1p(allowed):
            return rounds
    return None
