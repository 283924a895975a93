"""From what the GPUs did while steps were timed to energy, a clock, and what a reader should know of the run.

Every figure is over all ranks' GPUs, and over the timed steps only; samples from before them are context. A flag says
that a run was slower than the card can be; it drops nothing, and does not say that the time is invalid: a card at its
power limit is the rule in long GEMMs, and part of what a precision costs.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import linear_regression, median

from fp8bench.schema.rank import POWER_CAP, SLOWDOWNS, RankTelemetry

J_PER_KWH = 3.6e6

POWER_CAPPED_SHARE = 0.5
"""Ours: below half of the samples the limit does not set the median clock."""

CLOCK_DROP = 0.75
"""nvbench discards a sample whose SM clock is below 75 % of the default clock (--throttle-threshold). We flag, and take
the card's highest clock for the default one, since NVML names the former on every card.
"""

FEWEST_FOR_SLOPE = 5
"""Ours: samples of the counter, a second of them, from which on their slope is nearer to the truth than two of them."""

ROUND_DROP = 0.03
"""Ours: the time of a compute-bound step goes with the clock, and gains between modes begin at a few per cent."""


def drawn_between(
    at_s: Sequence[float], counter_j: Sequence[float | None], from_s: float, to_s: float, reach_s: float
) -> float | None:
    """Joules that a GPU drew between two moments, from samples of its counter in order of time.

    It is the slope of the counter (least squares) over the samples between the moments, times the time between them:
    the counter moves every 20 to 100 ms, so that one sample may be that late, and the difference of two is wrong by up
    to 1 % in 10 s. Five samples are needed. Fewer give the difference of the counter at either moment, which is on the
    line between its neighbours; a moment outside the samples is on the line through the two nearest.

    Samples must reach to reach_s of either moment. None where they do not, and where the counter did not grow, or fell:
    then it was reset, or moves too seldom for so short a time.
    """
    known = [(at, counter) for at, counter in zip(at_s, counter_j, strict=True) if counter is not None]
    if len(known) < 2 or from_s < known[0][0] - reach_s or to_s > known[-1][0] + reach_s:
        return None
    if any(later < earlier for (_, earlier), (_, later) in pairwise(known)):
        return None
    between = [(at, counter) for at, counter in known if from_s <= at <= to_s]
    if len(between) >= FEWEST_FOR_SLOPE:
        drawn = _slope(between) * (to_s - from_s)
    else:
        drawn = _counter_at(known, to_s) - _counter_at(known, from_s)
    return drawn if drawn > 0 else None


def _slope(samples: list[tuple[float, float]]) -> float:
    """Watts, by least squares; 0 where all samples are of one moment."""
    at_s, counter_j = zip(*samples, strict=True)
    return float(linear_regression(at_s, counter_j).slope) if at_s[0] < at_s[-1] else 0.0


def _counter_at(known: list[tuple[float, float]], moment: float) -> float:
    after = next((place for place, (at, _) in enumerate(known) if at >= moment), len(known) - 1)
    (at_0, counter_0), (at_1, counter_1) = known[max(1, after) - 1], known[max(1, after)]
    # Two samples at one moment would mean a clock that stood still.
    return counter_0 + (counter_1 - counter_0) * (moment - at_0) / (at_1 - at_0) if at_1 > at_0 else counter_0


def energy(telemetry: Sequence[RankTelemetry], units: float) -> tuple[float | None, float | None]:
    """(Joules a unit, units a kWh) over all ranks' GPUs; (None, None) where the energy of one is unknown.

    units: how many all ranks together processed in the timed steps.
    """
    drawn = [rank.energy_j for rank in telemetry if rank.energy_j is not None]
    if not drawn or len(drawn) < len(telemetry) or units <= 0:
        return None, None
    joules = sum(drawn) / units
    return joules, J_PER_KWH / joules if joules > 0 else None


def energy_spread(joules_per_unit: Sequence[float | None]) -> tuple[float, float] | None:
    """The least and the most that a unit took in any round, Joules; None for fewer than two rounds that know.

    It is the range of the rounds as they were, and no interval for the next one.
    """
    known = [joules for joules in joules_per_unit if joules is not None]
    return (min(known), max(known)) if len(known) > 1 else None


def median_sm_clock(telemetry: Sequence[RankTelemetry]) -> float | None:
    """MHz: each rank's median while steps were timed, of which the lowest; None where no rank has a sample."""
    medians = [clock for rank in telemetry if (clock := _median_clock(rank)) is not None]
    return min(medians, default=None)


def flags(telemetry: Sequence[RankTelemetry]) -> tuple[str, ...]:
    """What a reader should know, each with its figure, which is the worst rank's. telemetry: of every GPU rank."""
    found = [_power_capped(telemetry), _throttled(telemetry), _clock_dropped(telemetry), _memory_clock(telemetry)]
    return tuple(flag for flag in [*found, _missing(telemetry)] if flag is not None)


def round_flags(clocks: Sequence[float | None]) -> tuple[str | None, ...]:
    """For each round of one mode, a flag where its clock was lower than in the best round by more than ROUND_DROP.

    clocks: each round's median SM clock in MHz; null, which is never flagged, where unknown.
    """
    best = max((clock for clock in clocks if clock is not None), default=0)
    drops = [None if clock is None else 1 - clock / best for clock in clocks]
    return tuple(
        f"clock {drop * 100:.1f} % below this mode's best round" if drop is not None and drop > ROUND_DROP else None
        for drop in drops
    )


def _power_capped(telemetry: Sequence[RankTelemetry]) -> str | None:
    share = max((_share(rank, POWER_CAP) for rank in telemetry), default=0.0)
    return f"power-capped {_percent(share)} of the time" if share >= POWER_CAPPED_SHARE else None


def _throttled(telemetry: Sequence[RankTelemetry]) -> str | None:
    """One sample is enough: these are a fault of the machine or its cooling, and cost clocks by leaps (nvml.h: a
    hardware slowdown by a factor of two or more).
    """
    shares = {words: max((_share(rank, bit) for rank in telemetry), default=0.0) for bit, words in SLOWDOWNS.items()}
    seen = [f"{words} {_percent(share)}" for words, share in shares.items() if share > 0]
    return f"throttled: {', '.join(seen)}" if seen else None


def _clock_dropped(telemetry: Sequence[RankTelemetry]) -> str | None:
    dropped = [
        (clock / rank.max_sm_clock_mhz, clock, rank.max_sm_clock_mhz)
        for rank in telemetry
        if rank.max_sm_clock_mhz and (clock := _median_clock(rank)) is not None
    ]
    share, clock, highest = min(dropped, default=(1.0, 0.0, 0))
    return f"clock dropped to {clock:.0f} MHz of {highest}" if share < CLOCK_DROP else None


def _memory_clock(telemetry: Sequence[RankTelemetry]) -> str | None:
    """A card has one memory clock under load; a second one is another power state."""
    for rank in telemetry:
        clocks = _while_timed(rank, "memory_clock_mhz")
        if len(set(clocks)) > 1:
            return f"memory clock changed: {min(clocks)} to {max(clocks)} MHz"
    return None


def _missing(telemetry: Sequence[RankTelemetry]) -> str | None:
    missing = sum(rank.series is None for rank in telemetry)
    if missing == 0:
        return None
    return "telemetry missing" if missing == len(telemetry) else f"telemetry missing on {missing} of {len(telemetry)}"


def _while_timed(rank: RankTelemetry, column: str) -> list[int]:
    """The column's values inside the timed steps, without what is null."""
    if rank.series is None:
        return []
    end_s = float("inf") if rank.timed_s is None else rank.timed_s
    pairs = zip(rank.series.at_s, getattr(rank.series, column), strict=True)
    return [value for at_s, value in pairs if 0 <= at_s <= end_s and value is not None]


def _median_clock(rank: RankTelemetry) -> float | None:
    clocks = _while_timed(rank, "sm_clock_mhz")
    return float(median(clocks)) if clocks else None


def _share(rank: RankTelemetry, bit: int) -> float:
    """Of the samples with throttle reasons, how many have that one."""
    reasons = _while_timed(rank, "throttle_reasons")
    return sum(bool(reason & bit) for reason in reasons) / len(reasons) if reasons else 0.0


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.01 else "under 1 %"
