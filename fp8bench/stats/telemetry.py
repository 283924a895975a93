"""Turns all ranks' telemetry during the timed steps into energy, a clock, and flags that a reader should know of.

A flag means that a run was slower than the card can be. It drops nothing, and does not make the time invalid: a card at
its power limit is normal in long GEMMs, and part of the cost of a precision.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import linear_regression, median

from fp8bench.schema.rank import POWER_CAP, SLOWDOWNS, RankTelemetry

J_PER_KWH = 3.6e6
POWER_CAPPED_SHARE = 0.5
"""Our choice: below half of the samples, the limit does not determine the median clock."""

CLOCK_DROP = 0.75
"""nvbench discards a sample whose SM clock is below 75 % of the default clock (--throttle-threshold). Here it is
flagged, relative to the card's highest clock, because NVML reports that on every card.
"""

FEWEST_FOR_SLOPE = 5
"""Our choice: with this many samples of the counter (one second), their slope is more accurate than a difference."""

ROUND_DROP = 0.03
"""Our choice: the time of a compute-bound step follows the clock, and gains between modes begin at a few per cent."""


def drawn_between(
    at_s: Sequence[float], counter_j: Sequence[float | None], from_s: float, to_s: float, reach_s: float
) -> float | None:
    """Return the joules that a GPU drew between two moments, from samples of its counter in order of time.

    The slope of the counter (least squares) between the moments, times the time between them: the counter is updated
    every 20 to 100 ms, so the difference of two samples is off by up to 1 % in 10 s. With too few samples for a slope,
    the difference of the counter at both moments. None if samples do not reach to within reach_s of both, and if the
    counter did not grow, or fell.
    """
    known = [(at, counter) for at, counter in zip(at_s, counter_j, strict=True) if counter is not None]
    if len(known) < 2 or from_s < known[0][0] - reach_s or to_s > known[-1][0] + reach_s:
        return None
    if any(later < earlier for (_, earlier), (_, later) in pairwise(known)):
        return None
    between = [(at, counter) for at, counter in known if from_s <= at <= to_s]
    if len(between) < FEWEST_FOR_SLOPE:
        drawn = _counter_at(known, to_s) - _counter_at(known, from_s)
    else:
        slope_w = linear_regression(*zip(*between, strict=True)).slope if between[0][0] < between[-1][0] else 0.0
        drawn = slope_w * (to_s - from_s)
    return drawn if drawn > 0 else None


def _counter_at(known: list[tuple[float, float]], moment: float) -> float:
    after = max(1, next((place for place, (at, _) in enumerate(known) if at >= moment), len(known) - 1))
    (at_0, counter_0), (at_1, counter_1) = known[after - 1], known[after]
    # Two samples at one moment would mean that the clock stood still.
    return counter_0 + (counter_1 - counter_0) * (moment - at_0) / (at_1 - at_0) if at_1 > at_0 else counter_0


def energy(telemetry: Sequence[RankTelemetry], units: float) -> tuple[float | None, float | None]:
    """Return (joules per unit, units per kWh); (None, None) if one GPU's energy is unknown. units: of all ranks."""
    drawn = [rank.energy_j for rank in telemetry if rank.energy_j is not None]
    if not drawn or len(drawn) < len(telemetry) or units <= 0:
        return None, None
    joules = sum(drawn) / units
    return joules, J_PER_KWH / joules if joules > 0 else None


def median_sm_clock(telemetry: Sequence[RankTelemetry]) -> float | None:
    """Return the lowest of the ranks' medians while steps were timed, in MHz; None if no rank has a sample."""
    each = (float(median(seen)) for rank in telemetry if (seen := _while_timed(rank, "sm_clock_mhz")))
    return min(each, default=None)


def flags(telemetry: Sequence[RankTelemetry]) -> tuple[str, ...]:
    """Return what a reader should know, each with the worst rank's figure. telemetry: that of every GPU rank."""

    reasons = [seen for rank in telemetry if (seen := _while_timed(rank, "throttle_reasons"))]

    def most(bit: int) -> float:
        return max((sum(bool(one & bit) for one in seen) / len(seen) for seen in reasons), default=0.0)

    found = []
    if (capped := most(POWER_CAP)) >= POWER_CAPPED_SHARE:
        found.append(f"power-capped {_percent(capped)} of the time")
    # After a single sample: it is a fault of the machine or its cooling (nvml.h: a factor of two or more).
    throttled = [f"{words} {_percent(share)}" for bit, words in SLOWDOWNS.items() if (share := most(bit)) > 0]
    if throttled:
        found.append(f"throttled: {', '.join(throttled)}")
    clocks = [
        (median(seen) / rank.max_sm_clock_mhz, median(seen), rank.max_sm_clock_mhz)
        for rank in telemetry
        if rank.max_sm_clock_mhz and (seen := _while_timed(rank, "sm_clock_mhz"))
    ]
    share, clock, highest = min(clocks, default=(1.0, 0.0, 0))
    if share < CLOCK_DROP:
        found.append(f"clock dropped to {clock:.0f} MHz of {highest}")
    # A card has one memory clock under load, and another means a different power state.
    memory_clocks = ({*_while_timed(rank, "memory_clock_mhz")} for rank in telemetry)
    if changed := next((seen for seen in memory_clocks if len(seen) > 1), None):
        found.append(f"memory clock changed: {min(changed)} to {max(changed)} MHz")
    if missing := sum(rank.series is None for rank in telemetry):
        found.append("telemetry missing" + (f" on {missing} of {len(telemetry)}" if missing < len(telemetry) else ""))
    return tuple(found)


def round_flags(clocks: Sequence[float | None]) -> tuple[str | None, ...]:
    """Flag rounds of one mode whose median SM clock (MHz, None if unknown) is ROUND_DROP below the best round's."""
    best = max((clock for clock in clocks if clock is not None), default=0)
    drops = [0.0 if clock is None else 1 - clock / best for clock in clocks]
    return tuple(
        f"clock {drop * 100:.1f} % below this mode's best round" if drop > ROUND_DROP else None for drop in drops
    )


def _while_timed(rank: RankTelemetry, column: str) -> list[int]:
    if rank.series is None:
        return []
    end_s = float("inf") if rank.timed_s is None else rank.timed_s
    pairs = zip(rank.series.at_s, getattr(rank.series, column), strict=True)
    return [value for at_s, value in pairs if 0 <= at_s <= end_s and value is not None]


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.01 else "under 1 %"
