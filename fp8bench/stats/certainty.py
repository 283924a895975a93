"""When a difference counts, what a small number of processes cannot show, and when enough rounds have been run."""

import math
from collections.abc import Sequence
from typing import Literal

from fp8bench.stats.estimate import Estimate

Verdict = Literal["faster", "slower", "inconclusive"]  # on two step times

RowVerdict = Literal["better value", "worse value", "faster", "slower", "inconclusive"]
"""The verdict on a row against the reference: on value if both have a price, on speed if one has none."""

VerdictOn = Literal["units_per_usd", "throughput"]

ONE_PROCESS, ONE_ROUND = "one process is not a measurement", "the two share only one round of their session"

NOISE = 0.01
"""How far, as a share, two step times must differ before one of them is called better: our choice. A verdict needs the
complete interval beyond it; an explanation has no interval, and must not deny what a verdict says.
"""

BETWEEN_MACHINES = 0.04
"""NOISE for two that were measured on different machines. Machines of one type differed by up to 3.7 %
(evidence/README.md), and an interval covers the processes of one.
"""

LOOKS = (3, 6, 10, 14, 20, 30)
"""After so many rounds a session may end, if its modes are told apart by then. Whoever looks after every round, and
stops once the interval says enough, is wrong more often than one time in twenty.
"""

OUTSIDE = 0.0142
"""Of an interval at one of six looks: which share of cases is outside of it, for 5 % over all of them (Pocock, Group
sequential methods in the design and analysis of clinical trials, Biometrika 1977; benchmarks/simulate.py).
"""

CONFIDENCE = 0.95
SEEN_SHARE = 0.2

FEWEST_ROUNDS = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - SEEN_SHARE))
"""So many processes show a state of SEEN_SHARE of all at that confidence: 14."""


def noise_between(one: tuple[str, str | None], other: tuple[str, str | None]) -> float:
    """Return NOISE or BETWEEN_MACHINES. one, other: an instance, and a machine's id. Unknown ones may be the same."""
    return NOISE if one == other or (one[1] is not None and one[1] == other[1]) else BETWEEN_MACHINES


def holds_noise(noise: float) -> str:
    """Return why a verdict is inconclusive, as a clause without a full stop. noise: NOISE or BETWEEN_MACHINES."""
    why = ", and machines of one type differ by as much" if noise == BETWEEN_MACHINES else ""
    return f"the interval holds a difference of less than {100 * noise:.2g} %{why}"


def verdict_on_speed(low: float, high: float, noise: float = NOISE) -> Verdict:
    """low, high: the 95 % interval of a step time over the reference's. noise: how far from 1 all of it must be."""
    return "faster" if high < 1 - noise else "slower" if low > 1 + noise else "inconclusive"


def verdict_on_value(low: float, high: float, noise: float = NOISE) -> RowVerdict:
    """low, high: the interval of a unit's cost over its cost in the reference. noise: as in `verdict_on_speed`."""
    return "better value" if high < 1 - noise else "worse value" if low > 1 + noise else "inconclusive"


def unseen_share(processes: int) -> float:
    """Return the largest share of processes that may be in a state (a slow start, say) that none of `processes` showed,
    at 95 %: 0.53 for four, 0.19 for fourteen (Clopper & Pearson 1934, none seen). Raises ValueError for less than one.
    """
    if processes < 1:
        raise ValueError(f"at least one process is needed, not {processes}")
    return float(1 - (1 - CONFIDENCE) ** (1 / processes))


def reached(estimates: Sequence[Estimate | None], precision: float) -> bool:
    """Return whether every interval's half-width is at most `precision` of its middle, and every mode has an even
    number of processes (rounds come in pairs of opposite order), at least FEWEST_ROUNDS. None, without results, is no.
    """
    return all(
        one is not None
        and one.processes >= FEWEST_ROUNDS
        and one.processes % 2 == 0
        and one.half_width_share is not None
        and one.half_width_share <= precision
        for one in estimates
    )
