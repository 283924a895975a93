"""Price-performance: what a throughput costs. Pure formulas, as in the README; USD and hours, units as the workload
counts.

Checked against the article of 2023-11-15: 8 GPUs at batch 64 in 0.41 s for 32.77 USD/h give 137,187 images per USD.
"""

SECONDS_PER_HOUR = 3600


def units_per_usd(throughput_per_s: float, usd_per_hour: float) -> float:
    """throughput x 3600 / price."""
    return throughput_per_s * SECONDS_PER_HOUR / usd_per_hour


def usd_per_million_units(units_for_a_usd: float) -> float:
    """1e6 / units per USD."""
    return 1e6 / units_for_a_usd


def gain(units_for_a_usd: float, reference: float) -> float:
    """How much more a USD buys than it does in the reference row, minus 1: -0.313 is 31.3 % less."""
    return units_for_a_usd / reference - 1


def break_even_usd_per_hour(throughput_per_s: float, reference_units_per_usd: float) -> float:
    """The hourly price at which this throughput buys as much for a USD as the reference does."""
    return throughput_per_s * SECONDS_PER_HOUR / reference_units_per_usd


def job_hours(units: float, throughput_per_s: float) -> float:
    """How long a job of so many units takes."""
    return units / throughput_per_s / SECONDS_PER_HOUR


def job_usd(units: float, units_for_a_usd: float) -> float:
    """What a job of so many units costs."""
    return units / units_for_a_usd


def mfu(flops_per_step: float, step_time_s: float, gpus: int, peak_tflops: float) -> float:
    """Model FLOPs utilization: flops_per_step / (step time x GPUs x dense peak). flops_per_step is over all GPUs."""
    return flops_per_step / (step_time_s * gpus * peak_tflops * 1e12)


def rate_interval(
    rate: float, step_time_s: float, step_time_ci_s: tuple[float, float] | None
) -> tuple[float, float] | None:
    """The 95 % interval of what is in inverse proportion to the step time: a throughput, or units per USD, since a
    price is exact. The ends of the step time's interval change places.

    (rate x time / longest time, rate x time / shortest time); None where the time has no interval, or one that ends
    at 0 and bounds nothing.
    """
    if step_time_ci_s is None or step_time_ci_s[0] <= 0:
        return None
    shortest, longest = step_time_ci_s
    return rate * step_time_s / longest, rate * step_time_s / shortest
