"""How much a step depends on the one before it, and how many independent ones forty steps are worth.

Steps of one process are no independent draws: a clock that has sunk stays low for a while, and a late data loader is
late twice. The variance of their mean is then not s**2 / n but about s**2 / n * (1 + 2 * sum of autocorrelations), and
an interval that supposes independence is too narrow by the root of that factor: 2 for a lag-one autocorrelation of 0.6.

Here are the two common measures of it, the autocorrelation at lag one and the effective sample size (Geyer, Practical
Markov chain Monte Carlo, Statistical Science 1992), and the length of the blocks that a bootstrap has to keep whole so
as to carry the dependence along (Politis & White, Automatic block-length selection for the dependent bootstrap,
Econometric Reviews 2004, with the correction by Patton, Politis & White, 2009).

None of it is a test, and all of it is rough at forty steps: the sample autocorrelation is biased towards zero and
below (Kendall 1954), so the dependence is sooner understated than overstated. Who builds an interval on it has to make
up for that (`bootstrap`, `estimate`).
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FEWEST = 3
_STRONGEST = 0.8
_FURTHEST = 1000


def lag1_autocorrelation(samples: Sequence[float]) -> float | None:
    """The correlation of a step with the one before it, without unit, -1 to 1.

    The usual estimate: autocovariance at lag one over the variance, both divided by n (Box & Jenkins 1970). None for
    constant samples or fewer than three.
    """
    correlations = _autocorrelations(samples, 1)
    return None if correlations is None else float(correlations[1])


def effective_samples(samples: Sequence[float]) -> float | None:
    """How many independent steps would fix the mean as well as these do; 1 to n. None as for the autocorrelation.

    n / (1 + 2 * sum of autocorrelations), summed by Geyer's initial positive sequence: pairs of neighbouring lags are
    added for as long as a pair is positive, since beyond it there is only noise, and up to lag 1000. Steps that
    alternate would be worth more than n; that is not believed of forty of them, and n is the most that is said.
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
    """The autocorrelation at lag one, freed of its bias, 0 to 0.8; without unit.

    fitted: how many coefficients were taken out of the samples: 1 for a mean (which is always), 2 for a line. What was
    fitted followed the noise, and the correlation r that is left shows too small by (fitted + (2 + 2 fitted) r) / n
    (Kendall, Note on bias in the estimation of autocorrelation, Biometrika 1954, for a mean: 1 + 4 r). It is cut at 0,
    where dependence would help, and at 0.8, from where on forty steps are too few to decide. 0 for constant samples.
    """
    n, lag1 = len(samples), lag1_autocorrelation(samples)
    if lag1 is None:
        return 0.0
    # Down to a handful of steps the correction would go through the roof.
    correlation = (n * lag1 + fitted) / max(n - 2 - 2 * fitted, 1)
    return min(max(correlation, 0.0), _STRONGEST)


def block_length(samples: Sequence[float]) -> int:
    """How many steps in a row a circular block bootstrap should draw at once; 1 to a third of the steps.

    The length with the least mean squared error of the estimated variance of the mean, (2 g**2 n / d)**(1/3), with g
    and d from flat-top-weighted autocovariances (Politis & White 2004; d as corrected by Patton, Politis & White 2009),
    rounded to the nearest whole. The weights reach to twice the first lag from which on five autocorrelations in a row
    are within 2 * sqrt(log10(n) / n). 1 for constant samples or fewer than three.
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
    """By which factor a circular block bootstrap understates the variance of the mean; 1 or more, without unit.

    Blocks of `length` miss the dependence that reaches further, and vary around the samples' own mean, which has moved
    with them. With t(m) = 1 + 2 * sum over k < m of (1 - k / m) * r**k, what m steps of an AR(1) process with
    correlation r weigh, the bootstrap's variance is t(length) - length / n * t(n) where t(n) is true (Kunsch 1989 and
    Lahiri, Resampling methods for dependent data, 2003, chapter 3, have both terms). For independent steps it is
    n / (n - length), and r is `positive_correlation`. Raises ValueError unless 1 <= length < n.
    """
    n = len(samples)
    if not 1 <= length < n:
        raise ValueError(f"blocks of {length} cannot be drawn from {n} steps")
    correlation = positive_correlation(samples)
    whole = _weight(correlation, n)
    return whole / (_weight(correlation, length) - length / n * whole)


def _weight(correlation: float, steps: int) -> float:
    """How many times the variance of a mean of `steps` AR(1) values is that of as many independent ones."""
    return 1 + 2 * sum((1 - k / steps) * correlation**k for k in range(1, steps))


def _reach(samples: Sequence[float], covariances: npt.NDArray[np.float64], runs: int) -> int:
    """The furthest lag that the weights of `block_length` let in."""
    n, furthest = len(samples), len(covariances) - 1
    squares = (np.asarray(samples, dtype=np.float64) - np.mean(samples)) ** 2
    # Over the steps that both factors of a lag share: at lag 12 of 40 a fourth of the steps has no partner.
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
    """At lags 0 to `furthest`; None for constant samples or fewer than three."""
    covariances = _autocovariances(samples, furthest)
    return None if covariances is None else covariances / covariances[0]


def _autocovariances(samples: Sequence[float], furthest: int) -> npt.NDArray[np.float64] | None:
    """At lags 0 to `furthest`, each over n; None for constant samples or fewer than three."""
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < _FEWEST or values.min() == values.max():
        return None
    centred = values - values.mean()
    return np.array([centred[lag:] @ centred[: len(centred) - lag] for lag in range(furthest + 1)]) / len(centred)
