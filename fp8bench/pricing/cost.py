"""Price-performance: the cost of a throughput, in USD, hours and the workload's units. A job costs its hours times the
price of all machines together: only training steps, and no minimum that a provider bills. Checked against the article
of 2023-11-15: 8 GPUs at batch 64 in 0.41 s for 32.77 USD/h give 137,187 images per USD.
"""

from collections.abc import Sequence

Interval = tuple[float, float]
"""A 95 % interval. Units and prices are exact, so a step's interval carries over in proportion."""

Point = tuple[float, float]
"""Seconds per unit, USD per unit."""

SECONDS_PER_HOUR = 3600


def units_per_usd(throughput_per_s: float, usd_per_hour: float) -> float:
    return throughput_per_s * SECONDS_PER_HOUR / usd_per_hour


def gain(units_for_a_usd: float, reference: float) -> float:
    """Return how much more a USD buys than in the reference row, minus 1: -0.313 is 31.3 % less."""
    return units_for_a_usd / reference - 1


def break_even_usd_per_hour(throughput_per_s: float, reference_units_per_usd: float) -> float:
    """Return the hourly price at which this throughput buys as much for a USD as the reference does."""
    return throughput_per_s * SECONDS_PER_HOUR / reference_units_per_usd


def job_hours(units: float, throughput_per_s: float) -> float:
    return units / throughput_per_s / SECONDS_PER_HOUR


def job_usd(units: float, units_for_a_usd: float) -> float:
    return units / units_for_a_usd


def mfu(flops_per_step: float, step_time_s: float, gpus: int, peak_tflops: float) -> float:
    """Return the model FLOPs utilization: flops_per_step (over all GPUs) / (step time x GPUs x dense peak)."""
    return flops_per_step / (step_time_s * gpus * peak_tflops * 1e12)


def rate_interval(rate: float, step_time_s: float, step_time_ci_s: Interval | None) -> Interval | None:
    """Return the 95 % interval of a throughput, or of units per USD; None for a time without one, or one from 0."""
    if step_time_ci_s is None or step_time_ci_s[0] <= 0:
        return None
    shortest, longest = step_time_ci_s
    return rate * step_time_s / longest, rate * step_time_s / shortest


def front(points: Sequence[Point]) -> list[bool]:
    """Return of each point whether no other is no slower, costs no more, and is better in one: the Pareto front (Kung,
    Luccio & Preparata, On finding the maxima of a set of vectors, JACM 1975). Intervals are not looked at.
    """
    on_front: set[Point] = set()
    cheapest = float("inf")
    for time, cost in sorted(set(points)):
        if cost < cheapest:
            on_front.add((time, cost))
            cheapest = cost
    return [point in on_front for point in points]
