"""From every rank's step times to one series, and what holds a run back besides its kernels.

DDP ranks meet at every all-reduce, so a group has taken as long as its slowest rank; pooling all ranks' times would
count one late rank as noise. What a group costs is its elapsed time, so the series that throughput, money and energy
rest on is that of the rank that took longest over all timed steps (`longest_rank`): its sum is the elapsed time. The
maximum over ranks, step by step (`slowest_rank`), would add up to more, since another rank is a little late each time;
it serves for parts of a step.

A GPU that its kernels limit is hardly ever idle; one that is idle for a tenth of a step or more waits for its host
(`schema.rank.HOST_BOUND_IDLE` gives the source of the limit). The host in turn may wait for the loader: where that is
at least a tenth of the elapsed time, and at least half of what the GPU is idle, the run is loader-bound, else
host-bound. A wait of a host whose GPU is busy meanwhile costs nothing. On a CPU the host is what works, so that every
wait for data lengthens the step; it is taken for a GPU of which no profile shows whether it was idle.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

from fp8bench.schema.rank import starved
from fp8bench.schema.record import Record

SLOW_STEP = 1.2
"""How many times its process's median a step takes from which on it is a slow one."""

LOADER_BOUND_WAIT = 0.10
"""Ours: below a tenth of the elapsed time a faster loader would gain hardly more than what processes differ by."""


def slowest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """per_rank: one sequence of step times a rank, all equally long. Returns the slowest rank's, step by step.

    Raises ValueError for no rank, or ranks that counted different steps.
    """
    if not per_rank:
        raise ValueError("no rank reported any step")
    return [max(step) for step in zip(*per_rank, strict=True)]


def longest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """per_rank: one sequence of step times a rank, all equally long. Returns that of the rank with the largest sum.

    Its sum is the group's elapsed time, and its mean the step time that throughput rests on. Raises ValueError for no
    rank, or ranks that counted different steps.
    """
    if not per_rank:
        raise ValueError("no rank reported any step")
    if len({len(steps) for steps in per_rank}) != 1:
        raise ValueError("the ranks counted different steps")
    return list(max(per_rank, key=sum))


def unit_steps(records: Iterable[Record]) -> tuple[tuple[float, ...], ...]:
    """Of each run that has samples, seconds a unit of every timed step: those of the longest rank, in order."""
    return tuple(
        tuple(step / record.summary.units_per_step for step in longest_rank([rank.step_s for rank in record.samples]))
        for record in records
        if record.summary is not None and record.samples
    )


def slow_steps(samples: Sequence[float]) -> int:
    """How many took more than SLOW_STEP times their median. Raises statistics.StatisticsError for no sample."""
    limit = SLOW_STEP * median(samples)
    return sum(sample > limit for sample in samples)


class Bottleneck(NamedTuple):
    """share: of the elapsed time; what the GPU is idle for `host-bound`, the wait for data for `loader-bound`."""

    label: Literal["host-bound", "loader-bound"]
    share: float

    def __str__(self) -> str:
        what = "idle" if self.label == "host-bound" else "wait"
        return f"{self.label} ({what} {self.share * 100:.0f} %)"


def bottleneck(idle_share: float | None, data_wait_share: float | None) -> Bottleneck | None:
    """Shares of the elapsed time; None is unknown. Returns None for neither, and for unknown."""
    waits_for_host = starved(idle_share)
    if waits_for_host is False:
        return None
    if data_wait_share is not None and data_wait_share >= max(LOADER_BOUND_WAIT, (idle_share or 0.0) / 2):
        return Bottleneck("loader-bound", data_wait_share)
    return Bottleneck("host-bound", idle_share) if waits_for_host and idle_share is not None else None


def bottleneck_of(record: Record) -> Bottleneck | None:
    """Of a record's run; None also where it has no summary."""
    if record.summary is None:
        return None
    return bottleneck(idle_share_of(record), record.summary.data_wait_share)


def idle_share_of(record: Record) -> float | None:
    """As its summary has it; of an older record from its profile and samples. None where neither shows it."""
    if record.summary is None:
        return None
    if record.summary.idle_share is not None or record.profile is None:
        return record.summary.idle_share
    step_time_s = record.summary.step_time_s
    if record.samples:
        steps = longest_rank([rank.step_s for rank in record.samples])
        step_time_s = sum(steps) / len(steps)
    return record.profile.idle_share(step_time_s)
