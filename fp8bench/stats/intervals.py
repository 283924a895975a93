"""Two methods for the ends of an interval when little is known: Student's t, and empirical likelihood.

95 % of a normal variable with a known standard deviation is within 1.96 standard deviations. A deviation that is
estimated from few values is too small more often than not, and the share is kept only by a wider interval: Student's t
(Student, The probable error of a mean, Biometrika 1908). Two values leave one degree of freedom and need 12.7 standard
deviations; three need 4.3; ten, 2.26. Degrees of freedom are fractional here, because those of a sum of estimated
variances are (Welch 1938, Satterthwaite 1946). A table with interpolation is used instead of a solver, because scipy,
which has one, is not a dependency of fp8bench.

Student's interval is symmetric. If one process in five is slow, a sample with a single slow one is below the truth, and
the symmetric interval ends too soon above it. Empirical likelihood (Owen, Empirical likelihood ratio confidence
intervals for a single functional, Biometrika 1988) measures how unequal the weights of the numbers must become to move
their mean that far, and so reaches further on the side of the tail. For numbers of only two kinds, it is the likelihood
interval of the binomial distribution.

For a mean mu the likeliest weights are p_i = 1 / (n * (1 + lambda * (x_i - mu))) (Owen 1988), which is p_i proportional
to 1 / (c - x_i) with c beyond the numbers on the side to which the mean is moved: one unknown, found by bisection.

It does not replace Student's interval. It never reaches beyond the numbers, and four of them make it far too narrow;
`estimate` takes whichever reaches further.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NORMAL_QUANTILE = 1.959963984540054
"""t for infinitely many degrees of freedom: the 97.5 % quantile of the normal distribution."""

# The 97.5 % quantile of Student's t for 1 / df of 0, 0.05, ..., 1. Its logarithm is almost straight in 1 / df, so
# linear interpolation between these points is within 0.05 % of the truth (the test compares it with scipy's).
_QUANTILES = (
    1.959964,
    2.085963,
    2.228139,
    2.388804,
    2.570582,
    2.776445,
    3.009769,
    3.274387,
    3.574655,
    3.915529,
    4.302653,
    4.742454,
    5.242265,
    5.810456,
    6.456586,
    7.191585,
    8.027951,
    8.979991,
    10.064082,
    11.298987,
    12.706205,
)
_INVERSE_DF = np.linspace(0.0, 1.0, len(_QUANTILES))
_LOG_QUANTILES = np.log(_QUANTILES)


def t_quantile(degrees_of_freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t: 95 % is between its negative and it. No unit.

    degrees_of_freedom: 1 or more, may be fractional; math.inf gives the normal distribution's 1.96. Raises ValueError
    below 1 and for nan, because every estimated variance rests on at least one value.
    """
    if not degrees_of_freedom >= 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, not {degrees_of_freedom}")
    return math.exp(float(np.interp(1 / degrees_of_freedom, _INVERSE_DF, _LOG_QUANTILES)))


_POINTS, _NARROWINGS = 40, 4
"""Each narrowing evaluates _POINTS at once, and continues between two neighbours: to 3e-5 of the complete range."""
_PLACES = np.arange(float(_POINTS))
_NEAREST, _FURTHEST = -30.0, 30.0
"""The range in which c is searched for: the logarithm of its distance beyond the numbers, in units of their range."""


def mean_interval(values: Sequence[float], critical: float) -> tuple[float, float]:
    """Return the lowest and highest mean whose -2 log empirical likelihood ratio is at most critical**2, in the values'
    unit.

    critical: a quantile of Student's or the normal distribution, above 0. For equal values, both ends are that value.
    Raises ValueError if there are no values.
    """
    if len(values) == 0:
        raise ValueError("a mean needs at least one value")
    numbers = np.asarray(values, dtype=np.float64)
    spread = float(np.ptp(numbers))
    if spread == 0:
        return float(numbers[0]), float(numbers[0])
    scaled = (numbers - numbers.min()) / spread
    low, high = _highest(np.stack([-scaled, scaled]), critical)
    return float(numbers.min()) - low * spread, float(numbers.min()) + high * spread


def _highest(scaled: npt.NDArray[np.float64], critical: float) -> tuple[float, float]:
    """Return the highest mean of each of two rows, at once to halve the calls. scaled: values over a range of 1."""
    count, rows = scaled.shape[1], np.arange(2)
    gaps = scaled.max(axis=1, keepdims=True) - scaled
    near, far = np.full((2, 1), _NEAREST), np.full((2, 1), _FURTHEST)
    for _ in range(_NARROWINGS):
        # The same as numpy.linspace, in half the time.
        grid = _PLACES * ((far - near) / (_POINTS - 1)) + near
        grid[:, -1:] = far
        ratios = -2 * np.log(count * _weights(gaps, grid)).sum(axis=2)
        # The ratio falls from left to right. At the far end all weights are equal and it is 0.
        first = np.maximum(1, (ratios <= critical**2).argmax(axis=1))
        near, far = grid[rows, first - 1, np.newaxis], grid[rows, first, np.newaxis]
    low, high = _weights(gaps, far)[:, 0]
    return float(low @ scaled[0]), float(high @ scaled[1])


def _weights(gaps: npt.NDArray[np.float64], logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return weights by row, c and number. gaps: the distance from a row's largest number to each."""
    weights: npt.NDArray[np.float64] = 1 / (np.exp(logarithms)[:, :, np.newaxis] + gaps[:, np.newaxis])
    weights /= weights.sum(axis=2, keepdims=True)
    return weights
