"""How far one process's median would have moved, had its steps fallen out otherwise.

The circular block bootstrap (Politis & Romano 1992; Kunsch 1989 for blocks): steps are drawn with replacement, not one
by one but in runs of neighbours, so that what one step tells about the next is drawn along; the last step is taken for
the neighbour of the first, so that all are drawn equally often. The median of each such series is one replicate.

Forty steps are few for it, and by itself it would be too sure: with an autocorrelation of 0.6 its 95 % hold in about
80 %. Three things are done about that, each with its reason:
  blocks have at least 1.75 * n**(1/3) steps, since the length chosen from the samples (`dependence.block_length`) is
  very often 1 or 2 by chance, and too long a block costs less than too short a one;
  deviations are stretched by what blocks of that length are known to miss (`dependence.block_shortfall`);
  whoever draws an interval from them widens it by Student's t for as few values as there are blocks (`student`).

It says nothing of another process: none of that process's steps were there to be drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fp8bench.stats.dependence import block_length, block_shortfall
from fp8bench.stats.student import NORMAL_QUANTILE

FEWEST_STEPS = 8
"""Four blocks of two: below it there is nothing to draw that keeps neighbours together."""

REPLICATES = 2000
SEED = 20240229
"""Fixed, so that a table printed twice from the same records is the same."""

_MOST_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class MedianDraws:
    """One process's median, seconds, and how far it might have moved.

    deviations: seconds from the median, one a replicate, stretched by the block shortfall. length: steps in a block.
    degrees_of_freedom: of their variance, which is about that of as many independent values as there are blocks.
    """

    median: float
    length: int
    degrees_of_freedom: float
    deviations: npt.NDArray[np.float64] = field(compare=False, repr=False)

    @property
    def variance(self) -> float:
        """Of the median, seconds squared: of the normal distribution whose 95 % are as wide as the deviations'.

        Their mean square would be a tenth more, by the heavy tails that a bootstrapped median has.
        """
        low, high = np.percentile(self.deviations, (2.5, 97.5))
        return float((high - low) / (2 * NORMAL_QUANTILE)) ** 2


def draw_medians(samples: Sequence[float], generator: np.random.Generator, replicates: int = REPLICATES) -> MedianDraws:
    """samples: one process's step times, seconds, in the order they were taken.

    Raises ValueError for fewer than `FEWEST_STEPS` samples, where there is nothing to draw blocks from.
    """
    n = len(samples)
    if n < FEWEST_STEPS:
        raise ValueError(f"a block bootstrap needs at least {FEWEST_STEPS} steps, not {n}")
    length = min(max(block_length(samples), math.ceil(1.75 * n ** (1 / 3))), n // 4)
    median = float(np.median(samples))
    medians = circular_block_medians(samples, length, generator, replicates)
    return MedianDraws(
        median=median,
        length=length,
        degrees_of_freedom=n / length - 1,
        deviations=(medians - median) * math.sqrt(block_shortfall(samples, length)),
    )


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
