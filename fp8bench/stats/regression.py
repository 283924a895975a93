"""Whether a mode has become slower than is allowed, if that can be said.

The ratio of two step times and its interval are those of `ratio`. A regression is claimed where the whole interval lies
beyond the allowed slow-down, and denied where all of it lies within; an interval that holds the limit decides neither.
So a limit of 0 would call equal modes inconclusive for ever, and one below the spread between processes often.

Of equal modes at most one check in forty has an interval wholly above 1, and fewer have one beyond the limit: 95 % of
intervals hold the truth, and half of the others lie above it.
"""

from dataclasses import dataclass
from typing import Literal

from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import ratio

Judgement = Literal["ok", "regression", "inconclusive"]


@dataclass(frozen=True)
class Regression:
    """value: our step time over the reference's, without unit; above 1, ours is slower. low, high: its 95 % interval;
    None where one of the estimates has none. why: of an inconclusive judgement, a clause without a full stop.
    """

    value: float
    low: float | None
    high: float | None
    judgement: Judgement
    why: str | None = None


def regression(ours: Estimate, reference: Estimate, allowed: float) -> Regression:
    """allowed: how much longer a step may take, as a share of the reference's (0.03 is 3 %). Raises ValueError for one
    that is not in [0, 1).
    """
    held = ratio(ours, reference, noise=allowed)
    if held.low is None or held.high is None or min(ours.processes, reference.processes) < 2:
        return Regression(held.value, held.low, held.high, "inconclusive", held.why)
    if held.low > 1 + allowed:
        return Regression(held.value, held.low, held.high, "regression")
    if held.high <= 1 + allowed:
        return Regression(held.value, held.low, held.high, "ok")
    why = f"its interval holds a slow-down of {100 * allowed:.3g} %: more rounds tell"
    return Regression(held.value, held.low, held.high, "inconclusive", why)
