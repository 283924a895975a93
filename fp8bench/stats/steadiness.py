"""Whether a process had warmed up when its steps were timed, how much its steps depend on one another, and which stand
out. Nothing is dropped because of it.

Outliers are steps more than 3.5 scaled median absolute deviations from the median (Iglewicz & Hoaglin, How to detect
and handle outliers, 1993).

Steps of one process are not independent draws: a clock that has fallen stays low for a while. The effective sample size
(Geyer, Practical Markov chain Monte Carlo, Statistical Science 1992) is how many independent steps say as much.

Drift is Sen's slope (1968), the median of the slopes of all pairs, which one late step does not tilt. Kendall's S, the
number of later steps that are slower minus the number that are faster (Mann 1945), decides whether it is more than
chance, with the variance of as many steps as were independent (Hamed & Rao, Journal of Hydrology 1998).

A warm-up that ends inside the timed steps is a level that falls once, for which Sen's slope is 0. So the first and the
last third are also compared, by their trimmed means (Yuen, Biometrika 1974). The third in which warm-up ended varies
more, so the noise is the steadier third's; that choice favours a difference, which must therefore be 2.5 times as large
as Student's t alone requires.

By simulation of 40 to 300 steps (AR(1), correlation 0 to 0.6) the thirds raise a false alarm in at most 2 % of cases,
and both tests together in at most 5 %. Of 100 steps that vary by 1 %, a first third that is 10 % slower is found in 96
to 100 %.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fp8bench.schema.record import Steadiness
from fp8bench.stats.estimate import t_quantile

FURTHEST_LAG, MOST_FOR_PAIRS = 1000, 1000
FEWEST_FOR_DRIFT, FEWEST_FOR_THIRDS = 8, 40
STRONGEST, OUTLYING, TOLERATED_DRIFT, TRIMMED, BEYOND_T = 0.8, 3.5, 0.02, 0.2, 2.5

Floats = npt.NDArray[np.float64]


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
    """Return the indices of outlying samples. 0.6745 / MAD scales them to standard deviations of a normal distribution.
    If more than half are equal, the mean absolute deviation replaces a MAD of 0, with its own factor 0.7979.
    """
    if len(samples) == 0:
        return ()
    values = np.asarray(samples, dtype=np.float64)
    distances = np.abs(values - np.median(values))
    scale = float(np.median(distances)) / 0.6745 or float(distances.mean()) / 0.7979
    return tuple(int(place) for place in np.flatnonzero(distances > OUTLYING * scale))


def _autocorrelations(samples: Sequence[float], furthest: int) -> Floats | None:
    """Return them from lag 0 on; None for constant samples, or fewer than three."""
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < 3 or values.min() == values.max():
        return None
    centred = values - values.mean()
    covariances = np.array([centred[lag:] @ centred[: len(centred) - lag] for lag in range(furthest + 1)])
    correlations: Floats = covariances / covariances[0]
    return correlations


def lag1_autocorrelation(samples: Sequence[float]) -> float | None:
    """Return the correlation of a step with the previous one, -1 to 1 (Box & Jenkins 1970), or None."""
    correlations = _autocorrelations(samples, 1)
    return None if correlations is None else float(correlations[1])


def effective_samples(samples: Sequence[float]) -> float | None:
    """Return how many independent steps would determine the mean as well; 1 to n, or None.

    n / (1 + 2 * sum of autocorrelations), summed by Geyer's initial positive sequence: pairs of neighbouring lags are
    added while a pair is positive, because beyond that there is only noise.
    """
    n = len(samples)
    correlations = _autocorrelations(samples, min(n - 1, FURTHEST_LAG))
    if correlations is None:
        return None
    pairs = correlations[: 2 * (len(correlations) // 2)].reshape(-1, 2).sum(axis=1)
    # As many as are positive before the first that is not.
    inefficiency = 2 * float(pairs[np.minimum.accumulate(pairs > 0)].sum()) - 1
    return n / min(max(inefficiency, 1.0), float(n))


def positive_correlation(samples: Sequence[float], fitted: int = 1) -> float:
    """Return the autocorrelation at lag one, corrected for its bias, 0 to 0.8; 0 for constant samples.

    fitted: the number of coefficients that were removed from the samples: 1 for a mean, 2 for a line. The fit followed
    the noise, and the remaining correlation r is too small by (fitted + (2 + 2 fitted) r) / n (Kendall, Biometrika
    1954, for a mean: 1 + 4 r). Beyond 0.8, 40 steps are too few to decide.
    """
    n, lag1 = len(samples), lag1_autocorrelation(samples)
    if lag1 is None:
        return 0.0
    # For a handful of steps the correction would become far too large.
    correlation = (n * lag1 + fitted) / max(n - 2 - 2 * fitted, 1)
    return min(max(correlation, 0.0), STRONGEST)


class _Fit(NamedTuple):
    """Sen's slope. values: the thinned steps. rises: of all pairs. slope: from one value to the next, in seconds."""

    values: Floats
    rises: Floats
    slope: float
    change: float


def _fit(samples: Sequence[float]) -> _Fit | None:
    if len(samples) < FEWEST_FOR_DRIFT:
        return None
    values = np.asarray(samples, dtype=np.float64)
    # The number of pairs is quadratic: of over a thousand steps, the medians of groups of neighbours.
    neighbours = -(-len(values) // MOST_FOR_PAIRS)
    if neighbours > 1:
        rows = len(values) // neighbours
        values = np.median(values[: rows * neighbours].reshape(rows, neighbours), axis=1)
    earlier, later = _pairs(len(values))
    rises = values[later] - values[earlier]
    slope, median = float(np.median(rises / (later - earlier))), float(np.median(values))
    return _Fit(values, rises, slope, slope * (len(values) - 1) / median) if median else None


@lru_cache(maxsize=4)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    earlier, later = np.triu_indices(count, 1)
    return earlier, later


def drift(samples: Sequence[float]) -> float | None:
    """Return the change of the steps from the first to the last, over their median: Sen's slope times n - 1. None for
    fewer than 8 samples, or a median of 0.
    """
    fit = _fit(samples)
    return fit.change if fit else None


def _third(samples: Sequence[float]) -> tuple[float, float]:
    """Return Yuen's trimmed mean, and how far t lets two such means differ. Its variance is that of the winsorized
    samples times a factor for dependence.
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    cut = int(TRIMMED * len(values))
    kept = values[cut : len(values) - cut]
    correlation = positive_correlation(samples)
    dependence = (1 + correlation) / (1 - correlation)
    winsorized = float(np.clip(values, kept[0], kept[-1]).var(ddof=1))
    variance = (len(values) - 1) * winsorized / (len(kept) * (len(kept) - 1)) * dependence
    return float(kept.mean()), t_quantile(max(1.0, len(kept) / dependence - 1)) * math.sqrt(2 * variance)


def _outer_thirds(samples: Sequence[float]) -> tuple[float, bool] | None:
    """Return by how much the last third took longer than the first, over the median, and whether that is no chance."""
    middle, length = float(np.median(samples)) if len(samples) else 0.0, len(samples) // 3
    if len(samples) < FEWEST_FOR_THIRDS or not middle:
        return None
    (first, noise), (last, other_noise) = _third(samples[:length]), _third(samples[-length:])
    return (last - first) / middle, abs(last - first) > BEYOND_T * min(noise, other_noise)


def thirds(samples: Sequence[float]) -> float | None:
    """Return by how much the last third of the steps took longer than the first, over the median, by 20 % trimmed
    means. None for fewer than 40 steps, whose thirds' noise is unknown, or a median of 0.
    """
    found = _outer_thirds(samples)
    return found[0] if found else None


def unsteady(samples: Sequence[float], recompilations: int | None, allocator_retries: int | None) -> str | None:
    """Return why warm-up had not ended when these steps were timed, in one clause; None if nothing indicates that.

    A recompilation or an emptied cache of the allocator is warm-up by itself. Otherwise there must be a drift of more
    than 2 % that is significant at 5 %, two-sided, or outer thirds that differ as much. Arguments as in `steadiness`.
    """
    for count, what in (
        (recompilations, "torch.compile recompiled"),
        (allocator_retries, "the GPU ran out of memory and the allocator retried"),
    ):
        if count:
            return f"{what} {'once' if count == 1 else f'{count} times'} while steps were timed"
    fit = _fit(samples)
    if fit and abs(fit.change) > TOLERATED_DRIFT and _significant(fit):
        direction = "rose" if fit.change > 0 else "fell"
        return f"steps still {direction} by {100 * abs(fit.change):.1f} % while they were timed"
    between, certain = _outer_thirds(samples) or (0.0, False)
    if certain and abs(between) > TOLERATED_DRIFT:
        slower, other = ("last", "first") if between > 0 else ("first", "last")
        return f"the {slower} third of the timed steps took {100 * abs(between):.1f} % longer than the {other}"
    return None


def _significant(fit: _Fit) -> bool:
    """Return whether Kendall's S is further from 0 than in 19 of 20 samples without a drift.

    The independent steps are counted in the residuals of the slope, because the slope itself looks like dependence.
    After a fit both counts overlook some dependence, each in other samples, and the smaller one is used: by simulation,
    false alarms are then 1 to 5 %.
    """
    n, largest = len(fit.values), float(np.abs(fit.values).max())
    # Beyond nine digits the residuals are rounding of the arithmetic, which is highly dependent.
    digits = 9 - math.ceil(math.log10(largest)) if largest > 0 else 0
    left: list[float] = (fit.values - fit.slope * np.arange(n)).round(digits).tolist()
    counted, correlation = effective_samples(left), positive_correlation(left, fitted=2)
    independent = min(n if counted is None else counted, n * (1 - correlation) / (1 + correlation))
    score = float(np.count_nonzero(fit.rises > 0) - np.count_nonzero(fit.rises < 0))
    variance = n * (n - 1) * (2 * n + 5) / 18 * n / independent
    return abs(score) > t_quantile(max(1.0, independent - 2)) * math.sqrt(variance)
