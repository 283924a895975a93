"""The quantile of Student's t that makes a 95 % interval, exact for whole and fractional degrees of freedom.

A standard deviation that is estimated from few values is too small more often than not (Student, The probable error of
a mean, Biometrika 1908): two values need 12.7 standard deviations, three 4.3, ten 2.26, infinitely many 1.96. The
degrees of freedom of a difference of two means are fractional (Welch, Biometrika 1947). scipy takes seconds to import.
"""

import math
from functools import lru_cache

NORMAL_QUANTILE = 1.959963984540054
"""t for infinitely many degrees of freedom: the 97.5 % quantile of the normal distribution."""

_NEARLY_NORMAL = 1e4
"""From so many on, two terms beyond the normal distribution (Cornish & Fisher 1938) are right to 1e-11."""


@lru_cache(maxsize=1024)
def t_quantile(degrees_of_freedom: float) -> float:
    """Return the 97.5 % quantile. degrees_of_freedom: may be fractional or infinite. Raises ValueError below 1, and for
    nan.
    """
    freedom, t = degrees_of_freedom, NORMAL_QUANTILE
    if not freedom >= 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, not {freedom}")
    if freedom > _NEARLY_NORMAL:
        return t + (t**3 + t) / (4 * freedom) + (5 * t**5 + 16 * t**3 + 3 * t) / (96 * freedom**2)
    at_zero = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi * freedom)
    step = t
    # Newton's method. The distribution is concave above 0, so every step from below ends below the quantile.
    while step > 1e-14 * t:
        density = at_zero * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        # Between 0 and t lies t * density * total (the series of the incomplete beta function).
        part, term, total, count = t * t / (freedom + t * t), 1.0, 1.0, 0
        while term > 1e-17 * total:
            term *= part * ((freedom + 1) / 2 + count) / (1.5 + count)
            total += term
            count += 1
        step = 0.475 / density - t * total
        t += step
    return t
