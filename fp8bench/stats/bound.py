"""What holds a run back besides its kernels: the host that launches them, or the loader that feeds it.

A GPU that never waits has a host that runs ahead of it: the queue of launches is tens of milliseconds long, a quarter
and more of a step (measured on H200s: 26 to 40 % for modes that the GPU limits, 2 to 5 % for those that the host
does; 15 % parts them). Where that lead is gone, the GPU is waiting: for data if the host itself waits for a tenth of
the step or more, else for launches. On a CPU no such lead exists; a quarter of a step spent waiting for data is called
loader-bound.
"""

from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.record import HOST_BOUND_LEAD, Summary

LOADER_BOUND_WAIT = 0.10
LOADER_BOUND_WAIT_ON_CPU = 0.25


@dataclass(frozen=True)
class Bound:
    """share: of the step; of the host's lead for `host-bound`, of the wait for data for `loader-bound`."""

    label: Literal["host-bound", "loader-bound"]
    share: float

    def __str__(self) -> str:
        what = "lead" if self.label == "host-bound" else "wait"
        return f"{self.label} ({what} {self.share * 100:.0f} %)"


def bound_by(summary: Summary) -> Bound | None:
    """None: by neither, or unknown."""
    wait = summary.data_wait_share
    if summary.host_lead_s is None:
        if wait is not None and wait >= LOADER_BOUND_WAIT_ON_CPU:
            return Bound("loader-bound", wait)
        return None
    lead = summary.host_lead_s / summary.step_time_s
    if lead >= HOST_BOUND_LEAD:
        return None
    if wait is not None and wait >= LOADER_BOUND_WAIT:
        return Bound("loader-bound", wait)
    return Bound("host-bound", lead)
