"""What holds a run back besides its kernels: the host that launches them, or the loader that feeds it.

A GPU that its kernels limit is hardly ever idle; one that is idle for a tenth of a step or more waits for its host
(`schema.profile.HOST_BOUND_IDLE` tells where the limit comes from). The host in turn may wait for the loader: where
that is at least a tenth of the elapsed time, and at least half of what the GPU is idle, the run is loader-bound, else
host-bound. A wait of a host whose GPU is busy meanwhile costs nothing.

On a CPU the host is what works, so that every wait for data lengthens the step; so it is taken for a GPU of which no
profile tells whether it was idle.
"""

from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.profile import starved
from fp8bench.schema.record import Record
from fp8bench.stats.steps import longest_rank

LOADER_BOUND_WAIT = 0.10
"""Ours: below a tenth of the elapsed time a faster loader would gain hardly more than what processes differ by."""


@dataclass(frozen=True)
class Bound:
    """share: of the elapsed time; what the GPU is idle for `host-bound`, the wait for data for `loader-bound`."""

    label: Literal["host-bound", "loader-bound"]
    share: float

    def __str__(self) -> str:
        what = "idle" if self.label == "host-bound" else "wait"
        return f"{self.label} ({what} {self.share * 100:.0f} %)"


def bound_by(idle_share: float | None, data_wait_share: float | None) -> Bound | None:
    """Shares of the elapsed time; None is unknown. Returns None for bound by neither, and for unknown."""
    waits_for_host = starved(idle_share)
    if waits_for_host is False:
        return None
    if data_wait_share is not None and data_wait_share >= max(LOADER_BOUND_WAIT, (idle_share or 0.0) / 2):
        return Bound("loader-bound", data_wait_share)
    return Bound("host-bound", idle_share) if waits_for_host and idle_share is not None else None


def bound_of(record: Record) -> Bound | None:
    """What holds a record's run back; None also where it has no summary."""
    if record.summary is None:
        return None
    return bound_by(idle_share_of(record), record.summary.data_wait_share)


def idle_share_of(record: Record) -> float | None:
    """As its summary has it; of an older record from its profile and samples. None where neither tells."""
    if record.summary is None:
        return None
    if record.summary.idle_share is not None or record.profile is None:
        return record.summary.idle_share
    step_time_s = record.summary.step_time_s
    if record.samples:
        steps = longest_rank([rank.step_s for rank in record.samples])
        step_time_s = sum(steps) / len(steps)
    return record.profile.idle_share(step_time_s)
