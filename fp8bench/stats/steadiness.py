"""Whether a process had warmed up when its steps were timed, and which steps stand out. Nothing is dropped for it.

Outliers are steps far from the median in units that outliers cannot stretch: the median absolute deviation (Iglewicz &
Hoaglin, How to detect and handle outliers, 1993, whose limit of 3.5 is used). A late step happened, and costs its time
in real training too; it is shown, and the median passes over it.

Drift is Sen's slope (Theil 1950, Sen 1968), the median of all pairs' slopes, which one late step does not tilt. Whether
it is more than chance is judged by Kendall's S, the number of later steps that are slower less that of faster ones
(Mann 1945). Autocorrelated steps wander, and would be taken for a drift in one case of three; so S gets the variance of
as many steps as were independent (Hamed & Rao, Journal of Hydrology 1998).

A drift that is certain but small is no reason to distrust a step time, and one that is large but uncertain is no
drift: steps are called unsteady for one that is both.

A line sees an even change. A warm-up that ends inside the timed steps is a level that falls once: where the first third
is slower, most pairs of steps do not differ, and Sen's slope is 0 however much slower it is. So the first third and the
last are compared too, by their trimmed means (Yuen, Biometrika 1974), which a few late steps do not move. Within the
third in which warm-up ended the steps vary by it, so the noise is taken from the third that is the steadier of the two,
with Student's t and the variance of dependent steps; that choice favours a difference, so it must be 2.5 times as large
as t alone requires. By simulation of 40 to 300 steps (AR(1), correlation 0 to 0.6) the thirds raise a false alarm in at
most 2 % of cases, and both tests together in at most 5 %. Of 100 steps that vary by 1 %, a first third that is 10 %
slower is found in 96 to 100 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fp8bench.schema.record import Steadiness
from fp8bench.stats.dependence import effective_samples, lag1_autocorrelation, positive_correlation
from fp8bench.stats.intervals import t_quantile

_OUTLYING = 3.5
_TOLERATED_DRIFT = 0.02
_FEWEST_FOR_DRIFT = 8
_FEWEST_FOR_THIRDS = 40
_TRIMMED = 0.2
_BEYOND_T = 2.5
_MOST_FOR_PAIRS = 1000


def steadiness(samples: Sequence[float], recompilations: int | None, allocator_retries: int | None) -> Steadiness:
    """What a record keeps of one process's steps: seconds, in the order they were taken.

    recompilations, allocator_retries: while steps were timed; None where unknown, which is no fault.
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
    """The places, counted from 0, of samples more than 3.5 scaled median absolute deviations from the median.

    0.6745 / MAD scales them to standard deviations of a normal distribution. Where more than half of the samples are
    equal the MAD is 0 and useless; the mean absolute deviation stands in for it, with its own 0.7979. None of
    constant samples, and none of no samples, is an outlier.
    """
    if len(samples) == 0:
        return ()
    values = np.asarray(samples, dtype=np.float64)
    distances = np.abs(values - np.median(values))
    scale = float(np.median(distances)) / 0.6745 or float(distances.mean()) / 0.7979
    return tuple(int(place) for place in np.flatnonzero(distances > _OUTLYING * scale))


def drift(samples: Sequence[float]) -> float | None:
    """How much the steps changed from the first to the last, over their median; -0.02: they fell by 2 %.

    Sen's slope times n - 1. None for fewer than 8 samples, too few for a slope, or a median of 0.
    """
    if len(samples) < _FEWEST_FOR_DRIFT:
        return None
    return _change(_fit(samples))


def thirds(samples: Sequence[float]) -> float | None:
    """By how much the last third of the steps took longer than the first, over the median; -0.1: 10 % less.

    From 20 % trimmed means. None for fewer than 40 steps, of whose thirds the noise is unknown, or a median of 0.
    """
    if len(samples) < _FEWEST_FOR_THIRDS:
        return None
    middle = float(np.median(samples))
    first, last = _outer_thirds(samples)
    return (last.mean - first.mean) / middle if middle else None


def unsteady(samples: Sequence[float], recompilations: int | None, allocator_retries: int | None) -> str | None:
    """Why warm-up had not ended when these steps were timed, in one clause; None if nothing says so.

    A recompilation or an emptied cache of the allocator is warm-up by itself. Otherwise it takes a drift of more than
    2 % that is significant at 5 %, two-sided, or outer thirds that differ as much. Arguments as in `steadiness`.
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
    """mean: trimmed. variance: of that mean, for dependent steps; degrees_of_freedom: of the variance, 1 or more."""

    mean: float
    variance: float
    degrees_of_freedom: float


def _outer_thirds(samples: Sequence[float]) -> tuple[_Third, _Third]:
    length = len(samples) // 3
    return _third(samples[:length]), _third(samples[-length:])


def _third(samples: Sequence[float]) -> _Third:
    """Yuen's trimmed mean; its variance is that of the winsorized samples, times what their dependence makes of it."""
    values = np.sort(np.asarray(samples, dtype=np.float64))
    cut = int(_TRIMMED * len(values))
    kept = values[cut : len(values) - cut]
    correlation = positive_correlation(samples)
    dependence = (1 + correlation) / (1 - correlation)
    winsorized = float(np.clip(values, kept[0], kept[-1]).var(ddof=1))
    variance = (len(values) - 1) * winsorized / (len(kept) * (len(kept) - 1))
    return _Third(float(kept.mean()), variance * dependence, max(1.0, len(kept) / dependence - 1))


def _thirds_differ(samples: Sequence[float]) -> bool:
    """Whether the outer thirds are further apart than the steadier one's noise explains."""
    first, last = _outer_thirds(samples)
    explained = min(t_quantile(third.degrees_of_freedom) * math.sqrt(2 * third.variance) for third in (first, last))
    return abs(last.mean - first.mean) > _BEYOND_T * explained


def _significant(fit: "_Fit") -> bool:
    """Whether Kendall's S is further from 0 than 19 of 20 samples without a drift would have it.

    The independent steps are counted in what the slope leaves, for the slope itself looks like dependence. Both counts
    of them overlook some of it after a fit, each in other samples, and the smaller is taken: by simulation false alarms
    are then 1 to 5 % for an autocorrelation of 0 to 0.6 and 12 to 100 steps.
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
    """How many decimals say anything, nine figures of the largest value: what is beyond is the arithmetic's rounding,
    which is as dependent as can be, and is all that a straight line leaves.
    """
    largest = float(np.abs(values).max())
    return 9 - math.ceil(math.log10(largest)) if largest > 0 else 0


def _thinned(samples: Sequence[float]) -> npt.NDArray[np.float64]:
    """The samples; of more than a thousand, the medians of equally many neighbours. Pairs are as many as the square."""
    values = np.asarray(samples, dtype=np.float64)
    neighbours = -(-len(values) // _MOST_FOR_PAIRS)
    if neighbours == 1:
        return values
    rows = len(values) // neighbours
    thinned: npt.NDArray[np.float64] = np.median(values[: rows * neighbours].reshape(rows, neighbours), axis=1)
    return thinned


@dataclass(frozen=True)
class _Fit:
    """values: the thinned steps, seconds. rises: of all pairs, the later less the earlier, in the order of `_pairs`.
    slope: Sen's, in seconds from one value to the next.
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
    """From the first step to the last, over the median; None for a median of 0."""
    median = float(np.median(fit.values))
    return fit.slope * (len(fit.values) - 1) / median if median else None


@lru_cache(maxsize=4)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of all pairs of so many: the earlier place, the later one, and how far they are apart."""
    earlier, later = np.triu_indices(count, 1)
    return earlier, later, later - earlier
