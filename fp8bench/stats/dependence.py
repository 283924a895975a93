"""How much a step depends on the previous one, and how many independent steps forty steps are worth.

Steps of one process are not independent draws: a clock that has fallen stays low for a while, and a late data loader is
late twice. The variance of their mean is then not s**2 / n but about s**2 / n * (1 + 2 * sum of autocorrelations), and
an interval that assumes independence is too narrow by the root of that factor: 2 for a lag-one autocorrelation of 0.6.

This module has the two common measures of dependence, the autocorrelation at lag one and the effective sample size
(Geyer, Practical Markov chain Monte Carlo, Statistical Science 1992), and the length of the blocks that a bootstrap
must keep together to preserve the dependence (Politis & White, Automatic block-length selection for the dependent
bootstrap, Econometric Reviews 2004, with the correction by Patton, Politis & White, 2009).

None of these is a test, and all are rough at forty steps: the sample autocorrelation is biased towards zero and below
(Kendall 1954), so dependence is understated rather than overstated. Intervals based on it must compensate for that
(`bootstrap`, `estimate`).
"""

import math
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


def block_length(samples: Sequence[float]) -> int:
    """Return how many consecutive steps a circular block bootstrap should draw at once; 1 to a third of the steps.

    This is the length with the least mean squared error of the estimated variance of the mean, (2 g**2 n / d)**(1/3),
    with g and d from flat-top-weighted autocovariances (Politis & White 2004; d as corrected by Patton, Politis & White
    2009), rounded to the nearest integer. The weights reach to twice the first lag from which five autocorrelations in
    a row are within 2 * sqrt(log10(n) / n). 1 for constant samples or fewer than three.
    """
    n = len(samples)
    runs = max(5, int(math.log10(max(n, 1))))
    furthest = min(math.ceil(math.sqrt(n)) + runs, n - 1)
    covariances = _autocovariances(samples, furthest)
    if covariances is None:
        return 1
    lags = np.arange(1, _reach(samples, covariances, runs) + 1)
    taper = np.minimum(1.0, 2 * (1 - lags / len(lags)))
    weighted = 2 * taper * covariances[lags]
    g = float((lags * weighted).sum())
    long_run_variance = float(covariances[0] + weighted.sum())
    d = 4 / 3 * long_run_variance**2
    longest = max(1, n // 3)
    if d == 0:
        return longest
    return round(min(max(math.cbrt(2 * g**2 / d * n), 1.0), float(longest)))


def block_shortfall(samples: Sequence[float], length: int) -> float:
    """Return the factor by which a circular block bootstrap understates the variance of the mean; 1 or more, without
    unit.

    Blocks of `length` miss the dependence that reaches further, and vary around the samples' own mean, which has moved
    with them. Let t(m) = 1 + 2 * sum over k < m of (1 - k / m) * r**k be the weight of m steps of an AR(1) process with
    correlation r. Then the bootstrap's variance is t(length) - length / n * t(n) where t(n) is true (Kunsch 1989 and
    Lahiri, Resampling methods for dependent data, 2003, chapter 3, have both terms). For independent steps the factor
    is n / (n - length), and r is `positive_correlation`. Raises ValueError unless 1 <= length < n.
    """
    n = len(samples)
    if not 1 <= length < n:
        raise ValueError(f"blocks of {length} cannot be drawn from {n} steps")
    correlation = positive_correlation(samples)
    whole = _weight(correlation, n)
    return whole / (_weight(correlation, length) - length / n * whole)


def _weight(correlation: float, steps: int) -> float:
    """Return the variance of a mean of `steps` AR(1) values, relative to that of as many independent values."""
    return 1 + 2 * sum((1 - k / steps) * correlation**k for k in range(1, steps))


def _reach(samples: Sequence[float], covariances: npt.NDArray[np.float64], runs: int) -> int:
    """Return the furthest lag that the weights of `block_length` include."""
    n, furthest = len(samples), len(covariances) - 1
    squares = (np.asarray(samples, dtype=np.float64) - np.mean(samples)) ** 2
    # Over the steps that both factors of a lag share: at lag 12 of 40, a fourth of the steps has no partner.
    heads = np.cumsum(squares)[::-1][: furthest + 1]
    tails = np.cumsum(squares[::-1])[::-1][: furthest + 1]
    scale = np.sqrt(heads * tails)
    band = 2 * math.sqrt(math.log10(n) / n)
    small = np.abs(n * covariances) < band * scale
    for lag in range(1, furthest - runs + 1):
        if small[lag : lag + runs].all():
            return min(2 * lag, furthest)
    return furthest


def _autocorrelations(samples: Sequence[float], furthest: int) -> npt.NDArray[np.float64] | None:
    """Return the autocorrelations at lags 0 to `furthest`; None for constant samples or fewer than three."""
    covariances = _autocovariances(samples, furthest)
    return None if covariances is None else covariances / covariances[0]


def _autocovariances(samples: Sequence[float], furthest: int) -> npt.NDArray[np.float64] | None:
    """Return autocovariances at lags 0 to `furthest`, each over n; None for constant samples or fewer than three."""
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < _FEWEST or values.min() == values.max():
        return None
    centred = values - values.mean()
    return np.array([centred[lag:] @ centred[: len(centred) - lag] for lag in range(furthest + 1)]) / len(centred)
