"""Whether a process had warmed up when its steps were timed, and which steps stand out. Nothing is dropped because of
it.

Outliers are steps far from the median, in units that outliers cannot inflate: the median absolute deviation (Iglewicz &
Hoaglin, How to detect and handle outliers, 1993, whose limit of 3.5 is used). A late step happened, and costs its time
in real training too; it is shown, and the median ignores it.

Drift is Sen's slope (Theil 1950, Sen 1968), the median of the slopes of all pairs, which one late step does not tilt.
Kendall's S, the number of later steps that are slower minus the number that are faster (Mann 1945), decides whether the
drift is more than chance. Autocorrelated steps wander, and would be taken for a drift in one of three cases; so S gets
the variance of as many steps as were independent (Hamed & Rao, Journal of Hydrology 1998).

A drift that is certain but small is no reason to distrust a step time, and one that is large but uncertain is not a
drift: steps are called unsteady only if it is both.

A line detects an even change. A warm-up that ends inside the timed steps is a level that falls once: if the first third
is slower, most pairs of steps do not differ, and Sen's slope is 0 however much slower it is. So the first and the last
third are also compared, by their trimmed means (Yuen, Biometrika 1974), which a few late steps do not move. In the
third in which warm-up ended, it adds to the variation of steps, so the noise is taken from the steadier of the two
thirds, with Student's t and the variance of dependent steps. That choice favours a difference, so it must be 2.5 times
as large as t alone requires. By simulation of 40 to 300 steps (AR(1), correlation 0 to 0.6) the thirds raise a false
alarm in at most 2 % of cases, and both tests together in at most 5 %. Of 100 steps that vary by 1 %, a first third that
is 10 % slower is found in 96 to 100 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fp8bench.schema.record import Steadiness
from fp8bench.stats.dependence import effective_samples, lag1_autocorrelation, positive_correlation
from fp8bench.stats.student import t_quantile

_OUTLYING = 3.5
_TOLERATED_DRIFT = 0.02
_FEWEST_FOR_DRIFT = 8
_FEWEST_FOR_THIRDS = 40
_TRIMMED = 0.2
_BEYOND_T = 2.5
_MOST_FOR_PAIRS = 1000


def steadiness(samples: Sequence[float], recompilations: int | None, allocator_retries: int | None) -> Steadiness:
    """Return the facts that a record keeps of one process's steps: seconds, in the order in which they were taken.

    recompilations, allocator_retries: their numbers while steps were timed; None if unknown, which is not a fault.
    """
    return Steadiness(
        lag1_autocorrelation=lag1_autocorrelation(samples),
        effective_samples=effective_samples(samples),
        outliers=outliers(samples),
        drift=drift(samples),
        thirds=thirds(samples),
        unsteady=unsteady(samples, recompilations, allocator_retries),
    )


def outliers(samples: Sequence[float]) -> tuple[int, ...]:
    """Return the indices, from 0, of samples more than 3.5 scaled median absolute deviations from the median.

    0.6745 / MAD scales them to standard deviations of a normal distribution. If more than half of the samples are
    equal, the MAD is 0 and useless; the mean absolute deviation replaces it, with its own factor 0.7979. Constant
    samples have no outliers, and neither has an empty series.
    """
    if len(samples) == 0:
        return ()
    values = np.asarray(samples, dtype=np.float64)
    distances = np.abs(values - np.median(values))
    scale = float(np.median(distances)) / 0.6745 or float(distances.mean()) / 0.7979
    return tuple(int(place) for place in np.flatnonzero(distances > _OUTLYING * scale))


def drift(samples: Sequence[float]) -> float | None:
    """Return the change of the steps from the first to the last, over their median; -0.02 means that they fell by 2 %.

    The change is Sen's slope times n - 1. None for fewer than 8 samples, too few for a slope, or a median of 0.
    """
    if len(samples) < _FEWEST_FOR_DRIFT:
        return None
    return _change(_fit(samples))


def thirds(samples: Sequence[float]) -> float | None:
    """Return by how much the last third of the steps took longer than the first, over the median; -0.1: 10 % less.

    Based on 20 % trimmed means. None for fewer than 40 steps, whose thirds' noise is unknown, or a median of 0.
    """
    if len(samples) < _FEWEST_FOR_THIRDS:
        return None
    middle = float(np.median(samples))
    first, last = _outer_thirds(samples)
    return (last.mean - first.mean) / middle if middle else None


def unsteady(samples: Sequence[float], recompilations: int | None, allocator_retries: int | None) -> str | None:
    """Return why warm-up had not ended when these steps were timed, in one clause; None if nothing indicates that.

    A recompilation or an emptied cache of the allocator is warm-up by itself. Otherwise there must be a drift of more
    than 2 % that is significant at 5 %, two-sided, or outer thirds that differ as much. Arguments as in `steadiness`.
    """
    if recompilations:
        return f"torch.compile recompiled {_times(recompilations)} while steps were timed"
    if allocator_retries:
        return f"the GPU ran out of memory and the allocator retried {_times(allocator_retries)} while steps were timed"
    fit = _fit(samples) if len(samples) >= _FEWEST_FOR_DRIFT else None
    changed = _change(fit) if fit else None
    if fit and changed is not None and abs(changed) > _TOLERATED_DRIFT and _significant(fit):
        direction = "rose" if changed > 0 else "fell"
        return f"steps still {direction} by {100 * abs(changed):.1f} % while they were timed"
    between = thirds(samples)
    if between is not None and abs(between) > _TOLERATED_DRIFT and _thirds_differ(samples):
        slower, other = ("last", "first") if between > 0 else ("first", "last")
        return f"the {slower} third of the timed steps took {100 * abs(between):.1f} % longer than the {other}"
    return None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@dataclass(frozen=True)
class _Third:
    """A third of the steps. mean: trimmed. variance: of that mean, for dependent steps. degrees_of_freedom: >= 1."""

    mean: float
    variance: float
    degrees_of_freedom: float


def _outer_thirds(samples: Sequence[float]) -> tuple[_Third, _Third]:
    length = len(samples) // 3
    return _third(samples[:length]), _third(samples[-length:])


def _third(samples: Sequence[float]) -> _Third:
    """Return Yuen's trimmed mean. Its variance is that of the winsorized samples times a factor for dependence."""
    values = np.sort(np.asarray(samples, dtype=np.float64))
    cut = int(_TRIMMED * len(values))
    kept = values[cut : len(values) - cut]
    correlation = positive_correlation(samples)
    dependence = (1 + correlation) / (1 - correlation)
    winsorized = float(np.clip(values, kept[0], kept[-1]).var(ddof=1))
    variance = (len(values) - 1) * winsorized / (len(kept) * (len(kept) - 1))
    return _Third(float(kept.mean()), variance * dependence, max(1.0, len(kept) / dependence - 1))


def _thirds_differ(samples: Sequence[float]) -> bool:
    """Return whether the outer thirds are further apart than the steadier one's noise explains."""
    first, last = _outer_thirds(samples)
    explained = min(t_quantile(third.degrees_of_freedom) * math.sqrt(2 * third.variance) for third in (first, last))
    return abs(last.mean - first.mean) > _BEYOND_T * explained


def _significant(fit: "_Fit") -> bool:
    """Return whether Kendall's S is further from 0 than in 19 of 20 samples without a drift.

    The independent steps are counted in the residuals of the slope, because the slope itself looks like dependence.
    After a fit both counts overlook some dependence, each in other samples, and the smaller count is used: by
    simulation, false alarms are then 1 to 5 % for an autocorrelation of 0 to 0.6 and 12 to 100 steps.
    """
    n = len(fit.values)
    left: list[float] = (fit.values - fit.slope * np.arange(n)).round(_digits(fit.values)).tolist()
    counted = effective_samples(left)
    correlation = positive_correlation(left, fitted=2)
    independent = min(n if counted is None else counted, n * (1 - correlation) / (1 + correlation))
    score = float(np.count_nonzero(fit.rises > 0) - np.count_nonzero(fit.rises < 0))
    variance = n * (n - 1) * (2 * n + 5) / 18 * n / independent
    return abs(score) > t_quantile(max(1.0, independent - 2)) * math.sqrt(variance)


def _digits(values: npt.NDArray[np.float64]) -> int:
    """Return how many decimals are meaningful, nine digits of the largest value. The rest is rounding of the
    arithmetic, which is highly dependent, and is all that remains after a straight line.
    """
    largest = float(np.abs(values).max())
    return 9 - math.ceil(math.log10(largest)) if largest > 0 else 0


def _thinned(samples: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the samples; if over a thousand, the medians of groups of neighbours: the number of pairs is quadratic."""
    values = np.asarray(samples, dtype=np.float64)
    neighbours = -(-len(values) // _MOST_FOR_PAIRS)
    if neighbours == 1:
        return values
    rows = len(values) // neighbours
    thinned: npt.NDArray[np.float64] = np.median(values[: rows * neighbours].reshape(rows, neighbours), axis=1)
    return thinned


@dataclass(frozen=True)
class _Fit:
    """A fit of Sen's slope. values: the thinned steps, seconds. rises: the later minus the earlier value of all pairs,
    in the order of `_pairs`. slope: in seconds from one value to the next.
    """

    values: npt.NDArray[np.float64]
    rises: npt.NDArray[np.float64]
    slope: float


def _fit(samples: Sequence[float]) -> _Fit:
    values = _thinned(samples)
    earlier, later, apart = _pairs(len(values))
    rises = values[later] - values[earlier]
    return _Fit(values, rises, float(np.median(rises / apart)))


def _change(fit: _Fit) -> float | None:
    """Return the change from the first step to the last, over the median; None for a median of 0."""
    median = float(np.median(fit.values))
    return fit.slope * (len(fit.values) - 1) / median if median else None


@lru_cache(maxsize=4)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return all pairs of `count` values: the earlier index, the later one, and their distance."""
    earlier, later = np.triu_indices(count, 1)
    return earlier, later, later - earlier
