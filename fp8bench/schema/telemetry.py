"""What the GPU did while steps were timed, as NVML told it. Null is what the driver would not say."""

from pydantic import Field

from fp8bench.schema.frozen import Frozen

POWER_CAP = 0x4
SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "hot", 0x40: "hot (hardware)", 0x80: "power brake"}
"""NVML's throttle reasons (nvml.h, nvmlClocksEventReason*): SwPowerCap is the card at its power limit, as it is in any
long matrix product; the others are faults of the machine or its cooling."""


class TelemetrySeries(Frozen):
    """Samples in order of time, one a place in every column; all columns are equally long."""

    at_s: tuple[float, ...] = Field(description="seconds after the first timed step began; before it negative")
    sm_clock_mhz: tuple[int | None, ...]
    memory_clock_mhz: tuple[int | None, ...]
    power_w: tuple[float | None, ...]
    temperature_c: tuple[int | None, ...]
    utilization_percent: tuple[int | None, ...]
    throttle_reasons: tuple[int | None, ...] = Field(description="NVML's bit mask; 0 or 1 (idle) is no throttling")
    energy_j: tuple[float | None, ...] = Field(description="the card's counter; only differences mean anything")

    def model_post_init(self, _context: object) -> None:
        # Thousands of series are read for a table: this is four times as quick as to go by the fields' names.
        if len(set(map(len, vars(self).values()))) != 1:
            raise ValueError("the columns of a series are equally long")


class RankTelemetry(Frozen):
    """One rank's GPU. warning: why something is missing, in one line."""

    rank: int
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    timed_s: float | None = Field(default=None, description="how long the timed steps lasted, by the GPU's clock")
    energy_j: float | None = Field(default=None, description="what the GPU drew while steps were timed")
    series: TelemetrySeries | None = None
    warning: str | None = None
