"""A mode's step time over several fresh processes, and the range in which it may really be.

A process draws its luck once: where its memory is placed, whether a kernel is tuned, whether a GPU starts warm or cold.
All its steps share that, so forty more of them do not make the result more certain, but another process does. (Kalibera
& Jones, Rigorous benchmarking in reasonable time, 2013; Barrett et al., Virtual machine warmup blows hot and cold,
2017.)

A process's step time is its elapsed time over its steps, i.e. their mean, because that is what is paid for: a median
ignores late steps, and the cost does not.

The model has two levels. A process's true mean varies around the mode's centre with variance T; its steps leave the
mean that they show with a variance W of its own (`bootstrap`). The variance V of the shown means over the processes
includes both, T + W. So T is estimated by V - W, or 0 if that is negative, and the variance of the mean over R
processes by the larger of V and W, over R.

The interval is Student's on a logarithmic scale, where half of a time is as far away as twice the time, and no bound is
below 0. V has only R - 1 degrees of freedom. If V shows no more than W explains, more is known, because W comes from
all blocks of all processes; `_degrees_of_freedom` interpolates between the two. If processes are skewed (one slow in
five), empirical likelihood reaches further to that side, and so does the interval (`deviations`).

One process has only W. Its interval is about that process's own centre, and does not apply to the next process.

No interval covers what no process showed: see `certainty.unseen_share`. benchmarks/simulate.py simulates coverage,
false verdicts and power for steady, bursty, two-state and drifting hosts; docs/simulations.md has the table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, geometric_mean, median

import numpy as np

from fp8bench.stats.bootstrap import FEWEST_STEPS, REPLICATES, Centre, Statistic, centre
from fp8bench.stats.intervals import mean_interval, t_quantile

_FEWEST_SKEWED = 3
"""Two numbers are never skewed."""


@dataclass(frozen=True)
class Estimate:
    """The mean over processes of each process's step time in seconds, and its 95 % interval.

    low, high: seconds, above 0; None if a process has fewer steps than a block bootstrap needs. processes, steps: their
    numbers; steps over all processes together. between: the standard deviation of the processes' true step times, over
    value; None for one process, or without an interval. within: the standard error of one process's step time, over
    value; None without an interval. error: the standard error of value, over value; None without an interval.
    degrees_of_freedom: the number of independent values that the error effectively rests on; None without one. centres:
    each process's step time in seconds, ascending.
    """

    value: float
    low: float | None
    high: float | None
    processes: int
    steps: int
    between: float | None
    within: float | None
    error: float | None
    degrees_of_freedom: float | None
    centres: tuple[float, ...] = field(repr=False)

    @property
    def interval(self) -> tuple[float, float] | None:
        """low and high; None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width_share(self) -> float | None:
        """Half the interval's width over the value: 0.01 means "give or take 1 %". None without an interval."""
        return (self.interval[1] - self.interval[0]) / 2 / self.value if self.interval else None


def estimate(
    processes: Sequence[Sequence[float]], statistic: Statistic = "mean", replicates: int = REPLICATES
) -> Estimate:
    """Return the estimate. processes: the step times of each process in seconds, in the order in which they were taken.
    statistic: how a process's steps are summarized; `mean` is its elapsed time over its steps.

    The order of the processes makes no difference. Raises ValueError if there are no processes, for one without steps,
    and for step times that are not finite and above 0.
    """
    if len(processes) == 0 or min(map(len, processes)) == 0:
        raise ValueError("an estimate needs at least one process, and a step in each")
    if not all(math.isfinite(step) and step > 0 for steps in processes for step in steps):
        raise ValueError("step times are finite and above 0")
    if min(map(len, processes)) < FEWEST_STEPS:
        average = fmean if statistic == "mean" else median
        centres = tuple(sorted(average(steps) for steps in processes))
        count = sum(map(len, processes))
        return Estimate(fmean(centres), None, None, len(centres), count, None, None, None, None, centres)
    return combined([centre(steps, statistic, replicates) for steps in processes])


def combined(found: Sequence[Centre]) -> Estimate:
    """Return the estimate from the results of `bootstrap.centre` for each process, at least one."""
    centres = tuple(sorted(each.value for each in found))
    value = fmean(centres)
    within = _typical_variance([each.variance for each in found])
    shown = float(np.var(centres, ddof=1)) if len(found) > 1 else within
    error = math.sqrt(max(shown, within) / len(found)) / value
    degrees = _degrees_of_freedom(found, within, shown)
    below, above = deviations(centres, error, t_quantile(degrees))
    return Estimate(
        value=value,
        low=value * math.exp(below),
        high=value * math.exp(above),
        processes=len(found),
        steps=sum(each.steps for each in found),
        between=math.sqrt(max(0.0, shown - within)) / value if len(found) > 1 else None,
        within=math.sqrt(within) / value,
        error=error,
        degrees_of_freedom=degrees,
        centres=centres,
    )


def deviations(centres: Sequence[float], error: float, critical: float) -> tuple[float, float]:
    """Return how far the logarithm of the mean of `centres` may be below and above the truth: at most 0, and at least
    0.

    error: the relative standard error of the mean. critical: the quantile of Student's t for the interval.
    """
    below, above = -critical * error, critical * error
    if len(centres) < _FEWEST_SKEWED:
        return below, above
    low, high = mean_interval(centres, critical)
    value = fmean(centres)
    return min(below, math.log(low / value)), max(above, math.log(high / value))


def _typical_variance(variances: Sequence[float]) -> float:
    """Return W; 0 if any of the variances is 0.

    A block bootstrap's variance of forty steps is so skewed that the mean of several is above the truth, which would
    hide how much processes really differ. If steps are occasionally late, a process without late steps knows nothing of
    them. The geometric mean is below the truth (about 0.9 times, by simulation), and what it misses counts towards T.
    """
    return geometric_mean(variances) if min(variances) > 0 else 0.0


def _degrees_of_freedom(found: Sequence[Centre], within: float, shown: float) -> float:
    """Return the degrees of freedom of the larger of V and W: R - 1 for V, all blocks less one per process for W.

    If V is the smaller, 1 / df falls from the one to the other with (V / W)**((R - 1)**3), so that a small change of a
    sample cannot double the width of an interval. The exponent has no theory; it was fitted by simulation. The
    transition is flat for two processes, which are often close together by chance, and almost a step from four on.
    """
    blocks = math.fsum(each.degrees_of_freedom for each in found)
    if len(found) == 1:
        return blocks
    alone = len(found) - 1
    weight = 1.0 if shown >= within else (shown / within) ** (alone**3)
    return 1 / (weight / alone + (1 - weight) / blocks)
