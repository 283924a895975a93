"""How long a job of so many units takes, and what it costs. Pure formulas.

    hours = units / throughput / 3600
    USD   = hours x (USD per hour of all machines together)

Training steps alone: starting, evaluation, checkpoints and what a reclaimed spot machine repeats are not in it, and
hours are not rounded up to what a provider bills at least. A step's 95 % interval carries over in proportion, since
units and prices are exact.
"""

from dataclasses import dataclass

from fp8bench.pricing.cost import job_hours

Interval = tuple[float, float]


@dataclass(frozen=True)
class JobTime:
    """hours: of elapsed time. ci: its 95 % interval; None where the step time has none."""

    hours: float
    ci: Interval | None

    def usd(self, usd_per_hour: float) -> float:
        """What all of it costs."""
        return self.hours * usd_per_hour

    def usd_ci(self, usd_per_hour: float) -> Interval | None:
        """The 95 % interval of that."""
        return None if self.ci is None else (self.ci[0] * usd_per_hour, self.ci[1] * usd_per_hour)


def job_time(units: float, throughput_per_s: float, step_time_s: float, step_time_ci_s: Interval | None) -> JobTime:
    """units: of the whole job, above 0. throughput_per_s: units a second, of all workers together."""
    hours = job_hours(units, throughput_per_s)
    if step_time_ci_s is None:
        return JobTime(hours, None)
    low, high = step_time_ci_s
    return JobTime(hours, (hours * low / step_time_s, hours * high / step_time_s))
