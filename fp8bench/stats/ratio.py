"""Which of two modes is faster, if that can be said.

The ratio of two step times is judged on the logarithm's scale, where it is a difference, "twice as fast" is as far
from equal as "half as fast", and an interval never reaches below 0. To first order a logarithm's deviation is the
deviation over the value, so that the replicates' deviations of both estimates (`estimate`) are drawn independently and
subtracted; their variances add, and the degrees of freedom are Welch's (The generalization of Student's problem,
Biometrika 1947; Satterthwaite, Biometrics Bulletin 1946). Nothing is paired: rounds of two modes run one after the
other and share no steps.

A verdict asks for more than an interval without 1. Two builds of the same mode easily differ by a percent that nobody
would act on; so the whole interval has to lie beyond `noise`. "Inconclusive" is no "equal": more processes may still
tell the two apart.
"""

import math
from dataclasses import dataclass

import numpy as np

from fp8bench.stats.bootstrap import SEED
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.student import NORMAL_QUANTILE, t_quantile
from fp8bench.stats.verdict import Verdict


@dataclass(frozen=True)
class Ratio:
    """Ours over the reference's step time, without unit: below 1, ours is faster.

    low, high: its 95 % interval; None where one of the estimates has none. why: of an inconclusive verdict, a clause
    without a full stop; None with any other.
    """

    value: float
    low: float | None
    high: float | None
    verdict: Verdict
    why: str | None


def ratio(ours: Estimate, reference: Estimate, noise: float = 0.01) -> Ratio:
    """noise: how far from 1 the whole interval must lie for a verdict, without unit (0.01 is 1 %).

    Where either is of one process only, the interval still stands, but speaks of those two processes and not of the
    modes: the verdict is inconclusive. Raises ValueError for a noise that is not in [0, 1).
    """
    if not 0 <= noise < 1:
        raise ValueError(f"noise is a share of at least 0 and below 1, not {noise}")
    value = ours.value / reference.value
    if ours.degrees_of_freedom is None or reference.degrees_of_freedom is None:
        return Ratio(value, None, None, "inconclusive", "too few steps for an interval")
    low, high = _interval(ours, ours.degrees_of_freedom, reference, reference.degrees_of_freedom)
    low, high = value * min(1.0, low), value * max(1.0, high)
    if min(ours.processes, reference.processes) < 2:
        return Ratio(value, low, high, "inconclusive", "one process is not a measurement")
    if high < 1 - noise:
        return Ratio(value, low, high, "faster", None)
    if low > 1 + noise:
        return Ratio(value, low, high, "slower", None)
    held = f"a difference of less than {100 * noise:.2g} %" if noise else "1"
    return Ratio(value, low, high, "inconclusive", f"the interval holds {held}")


def _interval(ours: Estimate, our_degrees: float, reference: Estimate, reference_degrees: float) -> tuple[float, float]:
    """The 95 % interval of the ratio, over the ratio itself."""
    mine = ours.deviations / ours.value
    theirs = reference.deviations / reference.value
    # Both estimates may have been drawn with one seed; in another order their replicates have nothing in common.
    theirs = np.random.default_rng(SEED).permutation(theirs)
    a, b = float(mine.var()), float(theirs.var())
    spread = a**2 / our_degrees + b**2 / reference_degrees
    degrees = max(1.0, (a + b) ** 2 / spread) if spread > 0 else math.inf
    count = min(len(mine), len(theirs))
    low, high = np.percentile(mine[:count] - theirs[:count], (2.5, 97.5)) * (t_quantile(degrees) / NORMAL_QUANTILE)
    return math.exp(float(low)), math.exp(float(high))
