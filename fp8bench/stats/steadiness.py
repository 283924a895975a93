"""Whether a process had warmed up when its steps were timed, how much its steps depend on one another, and which stand
out. Nothing is dropped because of it.

By simulation of 40 to 300 steps (AR(1), correlation 0 to 0.6) the thirds raise a false alarm in at most 2 % of cases,
and with the drift in at most 5 %. Of 100 steps that vary by 1 %, a first third that is 10 % slower is found in 96 to
100 %.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fp8bench.schema.record import Steadiness
from fp8bench.stats.estimate import t_quantile

FURTHEST_LAG, MOST_FOR_PAIRS = 1000, 1000
FEWEST_FOR_DRIFT, FEWEST_FOR_THIRDS = 8, 40
STRONGEST, OUTLYING, TOLERATED_DRIFT, TRIMMED, BEYOND_T = 0.8, 3.5, 0.02, 0.2, 2.5

Floats = npt.NDArray[np.float64]


def steadiness(
    samples: Sequence[float], recompilations: int | None = None, allocator_retries: int | None = None
) -> Steadiness:
    """Return what a record keeps of one process's steps: seconds, in order. The counts are of that time."""
    values = np.asarray(samples, dtype=np.float64)
    (drift, still_drifts), (thirds, are_unlike) = _drift(values), _between_thirds(values)
    lag1, effective = correlations(values)
    unsteady = None
    if recompilations:
        unsteady = f"torch.compile recompiled {_times(recompilations)} while steps were timed"
    elif allocator_retries:
        unsteady = (
            f"the GPU ran out of memory and the allocator retried {_times(allocator_retries)} while steps were timed"
        )
    elif drift is not None and still_drifts:
        unsteady = f"steps still {'rose' if drift > 0 else 'fell'} by {100 * abs(drift):.1f} % while they were timed"
    elif thirds is not None and are_unlike:
        slower, other = ("last", "first") if thirds > 0 else ("first", "last")
        longer = f"{100 * abs(thirds):.1f} % longer than the {other}"
        unsteady = f"the {slower} third of the timed steps took {longer}"
    return Steadiness(
        lag1_autocorrelation=lag1,
        effective_samples=effective,
        outliers=outliers(values),
        drift=drift,
        thirds=thirds,
        unsteady=unsteady,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def outliers(values: Floats) -> tuple[int, ...]:
    """Return the places of steps more than 3.5 scaled median absolute deviations from the median (Iglewicz & Hoaglin,
    How to detect and handle outliers, 1993). 0.6745 / MAD scales them to standard deviations of a normal distribution;
    if more than half are equal, the mean absolute deviation replaces a MAD of 0, with its own factor 0.7979.
    """
    if len(values) == 0:
        return ()
    distances = np.abs(values - np.median(values))
    scale = float(np.median(distances)) / 0.6745 or float(distances.mean()) / 0.7979
    return tuple(int(place) for place in np.flatnonzero(distances > OUTLYING * scale))


def correlations(values: Floats, furthest: int = FURTHEST_LAG) -> tuple[float | None, float | None]:
    """Return the correlation of a step with the previous one, -1 to 1 (Box & Jenkins 1970), and how many independent
    steps would determine the mean as well, 1 to n; None for constant samples, or fewer than three.

    Steps of one process are not independent draws: a clock that has fallen stays low for a while. The effective number
    is n / (1 + 2 * sum of autocorrelations), by Geyer's initial positive sequence (Practical Markov chain Monte Carlo,
    Statistical Science 1992): pairs of neighbouring lags are added while a pair is positive; beyond that is only noise.
    """
    n = len(values)
    if n < 3 or values.min() == values.max():
        return None, None
    centred = values - values.mean()
    covariances = np.array([centred[lag:] @ centred[: n - lag] for lag in range(min(n - 1, furthest) + 1)])
    found: Floats = covariances / covariances[0]
    pairs = found[: 2 * (len(found) // 2)].reshape(-1, 2).sum(axis=1)
    # As many as are positive before the first that is not.
    inefficiency = 2 * float(pairs[np.minimum.accumulate(pairs > 0)].sum()) - 1
    return float(found[1]), n / min(max(inefficiency, 1.0), float(n))


def positive_correlation(values: Floats, fitted: int = 1) -> float:
    """Return the autocorrelation at lag one, corrected for its bias, 0 to 0.8; 0 for constant samples.

    fitted: the number of coefficients that were removed from the samples: 1 for a mean, 2 for a line. The fit followed
    the noise, and the remaining correlation r is too small by (fitted + (2 + 2 fitted) r) / n (Kendall, Biometrika
    1954, for a mean: 1 + 4 r). Beyond 0.8, 40 steps are too few to decide.
    """
    n, (lag1, _) = len(values), correlations(values, furthest=1)
    if lag1 is None:
        return 0.0
    # For a handful of steps the correction would become far too large.
    correlation = (n * lag1 + fitted) / max(n - 2 - 2 * fitted, 1)
    return min(max(correlation, 0.0), STRONGEST)


def _drift(values: Floats) -> tuple[float | None, bool]:
    """Return the change from the first step to the last over the median, and whether it is significant. It follows
    Sen's slope (1968), the median of the slopes of all pairs, which one late step does not tilt; None for fewer than 8
    samples, or a median of 0.
    """
    if len(values) < FEWEST_FOR_DRIFT:
        return None, False
    # The number of pairs is quadratic: of over a thousand steps, the medians of groups of neighbours.
    neighbours = -(-len(values) // MOST_FOR_PAIRS)
    if neighbours > 1:
        rows = len(values) // neighbours
        values = np.median(values[: rows * neighbours].reshape(rows, neighbours), axis=1)
    earlier, later = np.triu_indices(len(values), 1)
    rises = values[later] - values[earlier]
    slope, median = float(np.median(rises / (later - earlier))), float(np.median(values))
    if not median:
        return None, False
    change = slope * (len(values) - 1) / median
    return change, abs(change) > TOLERATED_DRIFT and _significant(values, rises, slope)


def _significant(values: Floats, rises: Floats, slope: float) -> bool:
    """Return whether Kendall's S (slower later steps minus faster ones, Mann 1945) is further from 0 than in 19 of 20
    samples without a drift, with the variance of as many steps as were independent (Hamed & Rao, Journal of Hydrology
    1998).

    These are counted in the residuals of the slope, because the slope itself looks like dependence. After a fit both
    counts overlook some dependence, each in other samples, and the smaller one is used: by simulation, false alarms are
    then 1 to 5 %.
    """
    n, largest = len(values), float(np.abs(values).max())
    # Beyond nine digits the residuals are rounding of the arithmetic, which is highly dependent.
    digits = 9 - math.ceil(math.log10(largest)) if largest > 0 else 0
    left = (values - slope * np.arange(n)).round(digits)
    (_, counted), correlation = correlations(left), positive_correlation(left, fitted=2)
    independent = min(n if counted is None else counted, n * (1 - correlation) / (1 + correlation))
    score = float(np.count_nonzero(rises > 0) - np.count_nonzero(rises < 0))
    variance = n * (n - 1) * (2 * n + 5) / 18 * n / independent
    return abs(score) > t_quantile(max(1.0, independent - 2)) * math.sqrt(variance)


def _between_thirds(values: Floats) -> tuple[float | None, bool]:
    """Return by how much the last third took longer than the first, over the median, and whether that is no chance.
    These are 20 % trimmed means; None for fewer than 40 steps, whose thirds' noise is unknown, or a median of 0.

    A warm-up that ends inside the timed steps is a level that falls once, for which Sen's slope is 0. The third in
    which it ended varies more, so the noise is the steadier third's; that choice favours a difference, which must
    therefore be 2.5 times as large as Student's t alone requires.
    """
    middle, length = float(np.median(values)) if len(values) else 0.0, len(values) // 3
    if len(values) < FEWEST_FOR_THIRDS or not middle:
        return None, False
    (first, noise), (last, other_noise) = _third(values[:length]), _third(values[-length:])
    change, certain = (last - first) / middle, abs(last - first) > BEYOND_T * min(noise, other_noise)
    return change, certain and abs(change) > TOLERATED_DRIFT


def _third(values: Floats) -> tuple[float, float]:
    """Return Yuen's trimmed mean (Biometrika 1974), and how far t lets two such means differ. Its variance is that of
    the winsorized samples times a factor for dependence.
    """
    ordered = np.sort(values)
    cut = int(TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    correlation = positive_correlation(values)
    dependence = (1 + correlation) / (1 - correlation)
    winsorized = float(np.clip(ordered, kept[0], kept[-1]).var(ddof=1))
    variance = (len(ordered) - 1) * winsorized / (len(kept) * (len(kept) - 1)) * dependence
    return float(kept.mean()), t_quantile(max(1.0, len(kept) / dependence - 1)) * math.sqrt(2 * variance)
