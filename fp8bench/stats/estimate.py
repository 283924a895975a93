"""A mode's step time over several fresh processes, and where it may really lie.

A process draws its luck once: memory lands where it lands, a kernel is tuned or it is not, a GPU starts warm or cold.
All its steps share that, so that forty more steps of it do not make it more certain; another process does. (Kalibera &
Jones, Rigorous benchmarking in reasonable time, 2013; Barrett et al., Virtual machine warmup blows hot and cold, 2017.)

The model has two levels: a process's true median lies about the mode's centre, with variance T; its steps lie about
its true median, so that the median that they show has a variance W of its own. The variance V of the shown medians
over the processes holds both, T + W. So T is estimated by V - W, or 0 where that is negative.

The interval is a bootstrap's for random effects (Davison & Hinkley, Bootstrap methods and their application, 1997,
section 3.8; Field & Welsh, Bootstrapping clustered data, 2007). A replicate draws as many processes as there are, with
replacement. Each brings the process's deviation from the mean, scaled so that its variance is T, and one deviation of
the process's median as its steps could have fallen out (`bootstrap`). To resample the medians as they are would not do:
it draws W twice, and V with a factor of (R - 1) / R, which is two thirds for three processes. The deviations between
processes are drawn with either sign, because three of them say nothing of skewness.

The replicates' deviations are then widened by Student's t, for V is known from R - 1 degrees of freedom only. Where V
shows no more than W explains, more is known: W comes from all blocks of all processes. `_degrees_of_freedom` goes from
the one to the other.

One process has W only. Its interval speaks of that process's own centre, and says nothing of the next process's.

By simulation (AR(1) steps, correlation 0 to 0.6; processes that differ by 0 to 3 times what steps do; 1500 trials each)
the 95 % hold in 94 to 98 % for 1, 3 or 5 processes of 40 steps, and in 93 to 99 % for 20 steps. For two processes it is
93 to 99 %, at two to three times the width of three.
More dependence than that is beyond it (91 % for one process at 0.8), and so are processes of which few are far slower
than the rest: where they lie as skew as an exponential distribution, 3 hold it in 88 %, and 5 in 90 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from fp8bench.stats.bootstrap import FEWEST_STEPS, REPLICATES, SEED, MedianDraws, draw_medians
from fp8bench.stats.student import NORMAL_QUANTILE, t_quantile

_TAILS = (2.5, 97.5)


@dataclass(frozen=True)
class Estimate:
    """The mean over processes of each process's median step time, seconds, and its 95 % interval.

    low, high: seconds; None where a process has fewer steps than a block bootstrap needs. Never below 0.
    processes, steps: how many there were; steps over all processes together.
    between: the standard deviation of the processes' true medians, over value; None for one process, or without an
    interval. within: the standard error of one process's median, over value; None without an interval.
    degrees_of_freedom: how many independent values the interval's width may be said to rest on; None without one.
    deviations: the replicates' deviations from value, seconds, before they are widened; empty without an interval.
    """

    value: float
    low: float | None
    high: float | None
    processes: int
    steps: int
    between: float | None
    within: float | None
    degrees_of_freedom: float | None
    deviations: npt.NDArray[np.float64] = field(compare=False, repr=False)

    @property
    def half_width_share(self) -> float | None:
        """Half the interval's width over the value: 0.01 is "give or take 1 %". None without an interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value


def estimate(
    processes: Sequence[Sequence[float]],
    seed: int = SEED,
    replicates: int = REPLICATES,
    statistic: Literal["mean", "median"] = "mean",
) -> Estimate:
    """processes: one sequence of step times a process, seconds, in the order they were taken. statistic: of each.

    The order of the processes makes no difference. Raises ValueError for no process, for one without steps, and for
    step times that are not finite and above 0.
    """
    if len(processes) == 0 or min(map(len, processes)) == 0:
        raise ValueError("an estimate needs at least one process, and a step in each")
    ordered = sorted(tuple(map(float, steps)) for steps in processes)
    if not all(math.isfinite(step) and step > 0 for steps in ordered for step in steps):
        raise ValueError("step times are finite and above 0")
    of_one = np.mean if statistic == "mean" else np.median
    value = float(np.mean([of_one(steps) for steps in ordered]))
    count = sum(map(len, ordered))
    if min(map(len, ordered)) < FEWEST_STEPS:
        return Estimate(value, None, None, len(ordered), count, None, None, None, np.empty(0))

    generator = np.random.default_rng(seed)
    draws = [draw_medians(steps, generator, replicates) for steps in ordered]
    within = _geometric_mean([draw.variance for draw in draws])
    shown = float(np.var([of_one(steps) for steps in ordered], ddof=1)) if len(draws) > 1 else within
    between = max(0.0, shown - within)
    deviations = _deviations(draws, between, within, generator)
    degrees = _degrees_of_freedom(draws, within, shown)
    low, high = np.percentile(deviations, _TAILS) * (t_quantile(degrees) / NORMAL_QUANTILE)
    return Estimate(
        value=value,
        low=max(0.0, value + min(0.0, float(low))),
        high=value + max(0.0, float(high)),
        processes=len(draws),
        steps=count,
        between=math.sqrt(between) / value if len(draws) > 1 else None,
        within=math.sqrt(within) / value,
        degrees_of_freedom=degrees,
        deviations=deviations,
    )


def _geometric_mean(variances: Sequence[float]) -> float:
    """0 where any of them is.

    A bootstrap's variance of a median of forty steps is so skewed that the mean of several is 1.1 to 1.3 times the
    truth, which would hide what processes really differ by; this mean is about 0.9 times (by simulation), and what it
    lacks counts towards T.
    """
    return math.exp(sum(map(math.log, variances)) / len(variances)) if min(variances) > 0 else 0.0


def _deviations(
    draws: Sequence[MedianDraws], between: float, within: float, generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Of the mean over processes, seconds, one a replicate.

    between, within: the variances T of the processes' true medians and W of one shown about its true one.
    """
    if len(draws) == 1:
        return draws[0].deviations
    medians = np.array([draw.median for draw in draws])
    effects = _scaled(medians - medians.mean(), between)
    steps = _scaled(np.stack([draw.deviations for draw in draws]), within)
    size = (steps.shape[1], len(draws))
    drawn = generator.integers(0, len(draws), size)
    signs = generator.choice((-1.0, 1.0), size)
    means: npt.NDArray[np.float64] = (
        effects[drawn] * signs + steps[drawn, generator.integers(0, steps.shape[1], size)]
    ).mean(axis=1)
    return means


def _scaled(values: npt.NDArray[np.float64], variance: float) -> npt.NDArray[np.float64]:
    """Such that they have this variance; all of them 0 where they have none."""
    spread = values.std()
    return values * (math.sqrt(variance) / spread) if spread > 0 else np.zeros_like(values)


def _degrees_of_freedom(draws: Sequence[MedianDraws], within: float, shown: float) -> float:
    """Those of the larger of V and W, which the width rests on: R - 1 where V is, all blocks less one each where W is.

    Where V is the smaller, 1 / df falls from the one to the other with (V / W)**((R - 1)**3), so that no little change
    of a sample makes an interval twice as wide. The exponent is no theory's: it was fitted by simulation. It is flat
    for two processes, which often lie close together by chance, and all but a step from four on.
    """
    blocks = sum(draw.degrees_of_freedom for draw in draws)
    if len(draws) == 1:
        return blocks
    alone = len(draws) - 1
    weight = 1.0 if shown >= within else (shown / within) ** (alone**3)
    return 1 / (weight / alone + (1 - weight) / blocks)
