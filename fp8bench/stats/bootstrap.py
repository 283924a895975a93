"""One process's step time, and how far it would have moved, had the process's steps fallen out otherwise.

The mean over the timed steps is what is paid for; the median is a diagnostic. Of either, the variance is that of the
circular block bootstrap (Politis & Romano 1992; Kunsch 1989 for blocks): steps are drawn with replacement, not one by
one but in runs of neighbours, so that the dependence between steps is kept; the last step is taken for the
neighbour of the first, so that all are drawn equally often. For a mean that variance is known without any draw (it is
that of all overlapping blocks' means over the number of blocks; Meketon & Schmeiser, Overlapping batch means, 1984);
for a median it is drawn.

Forty steps are few for it, and by itself it would be too sure: with an autocorrelation of 0.6 its 95 % hold in about
80 %. Three things are done about that, each with its reason:
  blocks have at least 1.75 * n**(1/3) steps, since the length chosen from the samples (`dependence.block_length`) is
  very often 1 or 2 by chance, and too long a block costs less than too short a one;
  the variance is multiplied by what blocks of that length are known to miss (`dependence.block_shortfall`);
  whoever draws an interval from it widens it by Student's t for as few values as there are blocks (`student`).

It does not apply to another process: none of that process's steps were there to be drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fp8bench.stats.dependence import block_length, block_shortfall
from fp8bench.stats.intervals import NORMAL_QUANTILE

Statistic = Literal["mean", "median"]

FEWEST_STEPS = 8
"""Four blocks of two: below it there is nothing to draw that keeps neighbours together."""

REPLICATES = 2000
SEED = 20240229
"""Fixed, so that a table printed twice from the same records is the same."""

_MOST_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Centre:
    """One process's mean or median, seconds, and the variance that its steps leave it with, seconds squared.

    steps: how many there were. length: steps in a block. degrees_of_freedom: of the variance, which is about that of as
    many independent values as there are blocks.
    """

    value: float
    variance: float
    steps: int
    length: int
    degrees_of_freedom: float


def centre(samples: Sequence[float], statistic: Statistic = "mean", replicates: int = REPLICATES) -> Centre:
    """samples: one process's step times, seconds, in the order they were taken.

    Raises ValueError for fewer than `FEWEST_STEPS` samples, where there is nothing to draw blocks from.
    """
    n = len(samples)
    if n < FEWEST_STEPS:
        raise ValueError(f"a block bootstrap needs at least {FEWEST_STEPS} steps, not {n}")
    length = min(max(block_length(samples), math.ceil(1.75 * n ** (1 / 3))), n // 4)
    if statistic == "mean":
        value, variance = math.fsum(samples) / n, circular_block_variance(samples, length)
    else:
        value, variance = float(np.median(samples)), _variance_of_medians(samples, length, replicates)
    return Centre(value, variance * block_shortfall(samples, length), n, length, n / length - 1)


def circular_block_variance(samples: Sequence[float], length: int) -> float:
    """The variance of the mean under the circular block bootstrap with blocks of `length`: plain, nothing added.

    The variance of the means of all n blocks, over the n / length blocks that make a series. Seconds squared.
    """
    values = np.asarray(samples, dtype=np.float64)
    if np.ptp(values) == 0:
        return 0.0
    # From the mean on: a sum of seconds would drown what they differ by.
    around = np.concatenate([values, values[: length - 1]]) - values.mean()
    sums = np.concatenate([[0.0], np.cumsum(around)])
    means = (sums[length:] - sums[:-length]) / length
    return float((means**2).mean() * length / len(values))


def _variance_of_medians(samples: Sequence[float], length: int, replicates: int) -> float:
    """Of the normal distribution whose 95 % are as wide as the replicates'.

    Their mean square would be a tenth more, by the heavy tails that a bootstrapped median has.
    """
    medians = circular_block_medians(samples, length, np.random.default_rng(SEED), replicates)
    low, high = np.percentile(medians, (2.5, 97.5))
    return float((high - low) / (2 * NORMAL_QUANTILE)) ** 2


def circular_block_medians(
    samples: Sequence[float], length: int, generator: np.random.Generator, replicates: int = REPLICATES
) -> npt.NDArray[np.float64]:
    """The medians of `replicates` series, each as long as the samples, of blocks of `length`; the last one is cut.

    Unit and order as the samples'. The plain bootstrap, with nothing stretched.
    """
    values = np.asarray(samples, dtype=np.float64)
    n = len(values)
    around = np.concatenate([values, values[: length - 1]])
    medians = np.empty(replicates)
    # In portions, for the memory of thousands of steps; forty need one.
    portion = max(1, _MOST_AT_ONCE // n)
    for first in range(0, replicates, portion):
        rows = min(portion, replicates - first)
        starts = generator.integers(0, n, size=(rows, -(-n // length), 1))
        places = (starts + np.arange(length)).reshape(rows, -1)[:, :n]
        medians[first : first + rows] = _medians(around[places])
    return medians


def _medians(series: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of each row, which is left sorted: as numpy.median, in two thirds of its time for rows as short as these."""
    series.sort(axis=1)
    length = series.shape[1]
    middle: npt.NDArray[np.float64] = (series[:, (length - 1) // 2] + series[:, length // 2]) / 2
    return middle
