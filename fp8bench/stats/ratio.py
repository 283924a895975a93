"""Which of two modes is faster, if that can be said.

The ratio of two step times is judged on the logarithm's scale, where it is a difference, "twice as fast" is as far
from equal as "half as fast", and an interval never reaches below 0. What each estimate may lie below and above its
truth (`estimate.deviations`) is put together side by side, since one of them may reach further up than down: below by
ours below and the reference's above, as the roots of squares (Zou & Donner, Construction of confidence limits about
effect measures, Statistics in Medicine 2008). Both take the quantile of Student's t for the degrees of freedom that
their sum has (Welch, The generalization of Student's problem, Biometrika 1947; Satterthwaite, Biometrics Bulletin
1946). Nothing is paired: rounds of two modes run one after the other and share no steps.

A verdict asks for more than an interval without 1. Two builds of the same mode easily differ by a percent that nobody
would act on; so the whole interval has to lie beyond `noise`. "Inconclusive" is no "equal": more processes may still
tell the two apart.
"""

import math
from dataclasses import dataclass

from fp8bench.stats.estimate import Estimate, deviations
from fp8bench.stats.student import t_quantile
from fp8bench.stats.verdict import NOISE, Verdict


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


def ratio(ours: Estimate, reference: Estimate, noise: float = NOISE) -> Ratio:
    """noise: how far from 1 the whole interval must lie for a verdict, without unit (0.01 is 1 %).

    Where either is of one process only, the interval still stands, but speaks of those two processes and not of the
    modes: the verdict is inconclusive. Raises ValueError for a noise that is not in [0, 1).
    """
    if not 0 <= noise < 1:
        raise ValueError(f"noise is a share of at least 0 and below 1, not {noise}")
    value = ours.value / reference.value
    interval = _interval(ours, reference)
    if interval is None:
        return Ratio(value, None, None, "inconclusive", "too few steps for an interval")
    low, high = value * interval[0], value * interval[1]
    if min(ours.processes, reference.processes) < 2:
        return Ratio(value, low, high, "inconclusive", "one process is not a measurement")
    if high < 1 - noise:
        return Ratio(value, low, high, "faster", None)
    if low > 1 + noise:
        return Ratio(value, low, high, "slower", None)
    held = f"a difference of less than {100 * noise:.2g} %" if noise else "1"
    return Ratio(value, low, high, "inconclusive", f"the interval holds {held}")


def _interval(ours: Estimate, reference: Estimate) -> tuple[float, float] | None:
    """The 95 % interval of the ratio, over the ratio itself; None where either has none."""
    if ours.error is None or reference.error is None:
        return None
    if ours.degrees_of_freedom is None or reference.degrees_of_freedom is None:
        return None
    a, b = ours.error**2, reference.error**2
    spread = a**2 / ours.degrees_of_freedom + b**2 / reference.degrees_of_freedom
    critical = t_quantile(max(1.0, (a + b) ** 2 / spread) if spread > 0 else math.inf)
    below, above = deviations(ours.centres, ours.error, critical)
    their_below, their_above = deviations(reference.centres, reference.error, critical)
    return math.exp(-math.hypot(below, their_above)), math.exp(math.hypot(above, their_below))
