"""How much wider an interval must be where its width was itself guessed from little.

Of a normal variable with a known standard deviation, 95 % lies within 1.96 of them. Where the deviation is estimated
from few values it comes out too small more often than not, and the share is kept only by going further: Student's t
(Student, The probable error of a mean, Biometrika 1908). Two values leave one degree of freedom and need 12.7 standard
deviations; three need 4.3; ten, 2.26.

Degrees of freedom are fractional here, because those of a sum of estimated variances are (Welch 1938, Satterthwaite
1946). It is a table with interpolation and not a solver: scipy, which has one, is no dependency of fp8bench.
"""

import math

import numpy as np

NORMAL_QUANTILE = 1.959963984540054
"""t for infinitely many degrees of freedom: the 97.5 % quantile of the normal distribution."""

# The 97.5 % quantile of Student's t where 1 / df is 0, 0.05, ..., 1. Its logarithm is all but straight in 1 / df, so
# that straight lines between these points are within 0.05 % of the truth (the test compares them with scipy's).
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
    """The 97.5 % quantile of Student's t: 95 % lies between its negative and it. No unit.

    degrees_of_freedom: 1 or more, fractional too; math.inf gives the normal distribution's 1.96. Raises ValueError
    below 1 and for nan: no estimated variance has less than one value to itself.
    """
    if not degrees_of_freedom >= 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, not {degrees_of_freedom}")
    return math.exp(float(np.interp(1 / degrees_of_freedom, _INVERSE_DF, _LOG_QUANTILES)))
