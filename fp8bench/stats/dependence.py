"""How much a step depends on the previous one, and how many independent steps forty steps are worth.

Steps of one process are not independent draws: a clock that has fallen stays low for a while, and a late data loader is
late twice. What tells a drift from chance must know that (`steadiness`); intervals rest on processes alone.

The autocorrelation at lag one and the effective sample size (Geyer, Practical Markov chain Monte Carlo, Statistical
Science 1992) are no tests, and rough at forty steps: the sample autocorrelation is biased towards zero and below
(Kendall 1954), so dependence is understated rather than overstated.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FEWEST = 3
_STRONGEST = 0.8
_FURTHEST = 1000


def lag1_autocorrelation(samples: Sequence[float]) -> float | None:
    """Return the correlation of a step with the previous one, without unit, -1 to 1.

    This is the usual estimate: autocovariance at lag one over the variance, both divided by n (Box & Jenkins 1970).
    None for constant samples or fewer than three.
    """
    correlations = _autocorrelations(samples, 1)
    return None if correlations is None else float(correlations[1])


def effective_samples(samples: Sequence[float]) -> float | None:
    """Return how many independent steps would determine the mean as well; 1 to n. None as for the autocorrelation.

    n / (1 + 2 * sum of autocorrelations), summed by Geyer's initial positive sequence: pairs of neighbouring lags are
    added while a pair is positive, because beyond that there is only noise, and up to lag 1000. Steps that alternate
    would be worth more than n; forty of them are not enough evidence for that, and n is the limit.
    """
    n = len(samples)
    correlations = _autocorrelations(samples, min(n - 1, _FURTHEST))
    if correlations is None:
        return None
    even = correlations[: 2 * (len(correlations) // 2)]
    pairs = even.reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if len(negative) else pairs
    inefficiency = 2 * float(kept.sum()) - 1
    return n / min(max(inefficiency, 1.0), float(n))


def positive_correlation(samples: Sequence[float], fitted: int = 1) -> float:
    """Return the autocorrelation at lag one, corrected for its bias, 0 to 0.8; without unit.

    fitted: the number of coefficients that were removed from the samples: 1 for a mean (which always is), 2 for a line.
    The fit followed the noise, and the remaining correlation r is too small by (fitted + (2 + 2 fitted) r) / n
    (Kendall, Note on bias in the estimation of autocorrelation, Biometrika 1954, for a mean: 1 + 4 r). The result is
    cut at 0, where dependence would help, and at 0.8, beyond which 40 steps are too few to decide. 0 for constant
    samples.
    """
    n, lag1 = len(samples), lag1_autocorrelation(samples)
    if lag1 is None:
        return 0.0
    # For a handful of steps the correction would become far too large.
    correlation = (n * lag1 + fitted) / max(n - 2 - 2 * fitted, 1)
    return min(max(correlation, 0.0), _STRONGEST)


def _autocorrelations(samples: Sequence[float], furthest: int) -> npt.NDArray[np.float64] | None:
    """Return the autocorrelations at lags 0 to `furthest`; None for constant samples or fewer than three."""
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < _FEWEST or values.min() == values.max():
        return None
    centred = values - values.mean()
    covariances = np.array([centred[lag:] @ centred[: len(centred) - lag] for lag in range(furthest + 1)])
    correlations: npt.NDArray[np.float64] = covariances / covariances[0]
    return correlations
