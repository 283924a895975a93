"""Between which values the mean of a few skewed numbers may lie: empirical likelihood.

Student's interval is symmetric. Where one process in five is slow, a sample with a single slow one lies below the
truth, and the symmetric interval ends too soon above it. Empirical likelihood (Owen, Empirical likelihood ratio
confidence intervals for a single functional, Biometrika 1988) asks instead how unlike equal the weights of the numbers
must become for their mean to be moved so far, and so reaches further on the side of the tail. Of numbers that are of
two kinds only, it is the likelihood interval of the binomial distribution.

For a mean mu the likeliest weights are p_i = 1 / (n * (1 + lambda * (x_i - mu))) (Owen 1988), which is p_i proportional
to 1 / (c - x_i) with c beyond the numbers on the side to which the mean is moved: one unknown, found by bisection.

What it is not: a replacement of Student's. It never reaches beyond the numbers, which four of them make far too
narrow; `estimate` takes whichever reaches further.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_POINTS, _NARROWINGS = 40, 4
"""Each narrowing looks at so many points at once, and goes on between two neighbours: to 3e-5 of the whole range."""
_NEAREST, _FURTHEST = -30.0, 30.0
"""Where c is looked for: the logarithm of its distance beyond the numbers, in units of their range."""


def mean_bounds(values: Sequence[float], critical: float) -> tuple[float, float]:
    """The lowest and highest mean whose -2 log empirical likelihood ratio is at most critical**2; unit as the values'.

    critical: a quantile of Student's or the normal distribution, above 0. Equal values have that value for both ends.
    Raises ValueError for no value.
    """
    if len(values) == 0:
        raise ValueError("a mean needs at least one value")
    numbers = np.asarray(values, dtype=np.float64)
    spread = float(np.ptp(numbers))
    if spread == 0:
        return float(numbers[0]), float(numbers[0])
    scaled = (numbers - numbers.min()) / spread
    low, high = -_highest(-scaled, critical), _highest(scaled, critical)
    return float(numbers.min()) + low * spread, float(numbers.min()) + high * spread


def _highest(scaled: npt.NDArray[np.float64], critical: float) -> float:
    """The highest mean; scaled: values over a range of 1."""
    gaps = scaled.max() - scaled
    near, far = _NEAREST, _FURTHEST
    for _ in range(_NARROWINGS):
        grid = np.linspace(near, far, _POINTS)
        weights = _weights(gaps, grid)
        within = -2 * np.log(len(scaled) * weights).sum(axis=1) <= critical**2
        # The ratio falls from left to right; at the far end all weights are equal and it is 0.
        first = max(1, int(np.argmax(within)))
        near, far = float(grid[first - 1]), float(grid[first])
    return float(_weights(gaps, np.array([far]))[0] @ scaled)


def _weights(gaps: npt.NDArray[np.float64], logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By c and number. gaps: from the largest number to each."""
    weights: npt.NDArray[np.float64] = 1 / (np.exp(logarithms)[:, np.newaxis] + gaps)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
