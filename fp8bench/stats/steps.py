"""How many steps a rank times, which follows from warm-up's pace; what all ranks' times make in a record's summary, for
a launcher to write and a reader to compute again; and what other than its kernels holds a run back.

The step time is elapsed time over steps, of the rank that took longest: money and energy are spent on elapsed time.

Ranks that share their gradients meet in every step, so their steps take equally long, whichever is late. They differ in
what each does before: it waits for its data, and runs its forward pass. Medians over steps are compared, so that a
single late step does not identify a rank.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any, Literal, NamedTuple

from fp8bench.schema.rank import Profile, RankSamples, RankTelemetry, WorkloadFacts, starved
from fp8bench.schema.record import Record, StepTimes, Summary
from fp8bench.stats import telemetry as gpu

SLOW_STEP = 1.2  # times its process's median
LOADER_BOUND_WAIT = 0.10
"""Our choice: below a tenth of the elapsed time, a faster loader gains hardly more than processes differ."""

LATE_SHARE = 0.05
"""Our choice: how much later than the others' median a straggler is, as a share of a step. Ranks of equal machines
differ by less: in the records of two H200s (results/) forward passes differ by at most 0.8 % of a step.
"""

FEWEST_STEPS = 10

MEASURES: Mapping[str, Callable[[RankSamples], Sequence[float] | None]] = {
    "waiting for data": lambda rank: rank.data_wait_s,
    "in its forward pass": lambda rank: rank.forward_s,
    "in its steps": lambda rank: rank.step_s,
}
"""In order of priority if two show the same delay: on a GPU, the first is the cause of the second."""


def slowest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the slowest rank's time of each step: in all more than what elapsed. Raises ValueError if ranks differ."""
    if not per_rank:
        raise ValueError("no rank reported any step")
    return [max(step) for step in zip(*per_rank, strict=True)]


def longest_rank(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the times of the rank with the largest sum, the elapsed time. Raises ValueError as `slowest_rank`."""
    if not per_rank:
        raise ValueError("no rank reported any step")
    if len({len(steps) for steps in per_rank}) != 1:
        raise ValueError("the ranks counted different steps")
    return list(max(per_rank, key=sum))


def step_times(record: Record) -> StepTimes | None:
    """Return the step times of a run's samples if it has them, else as they were written; None without either."""
    if not record.samples:
        return record.step_times
    steps = longest_rank([rank.step_s for rank in record.samples])
    warmup = max((rank.warmup_step_s for rank in record.samples), key=sum)
    return StepTimes(
        steps=len(steps),
        mean_s=fmean(steps),
        median_s=median(steps),
        spread_s=pstdev(steps),
        slow_steps=slow_steps(steps),
        warmup_steps=len(warmup),
        warmup_s=sum(warmup),
    )


def slow_steps(samples: Sequence[float]) -> int:
    """Return how many took over SLOW_STEP times their median. Raises statistics.StatisticsError for no samples."""
    limit = SLOW_STEP * median(samples)
    return sum(sample > limit for sample in samples)


class Bottleneck(NamedTuple):
    """What holds a run back. share: of the elapsed time; idle if `host-bound`, data wait if `loader-bound`."""

    label: Literal["host-bound", "loader-bound"]
    share: float

    def __str__(self) -> str:
        return f"{self.label} ({'idle' if self.label == 'host-bound' else 'wait'} {self.share * 100:.0f} %)"


def bottleneck(idle_share: float | None, data_wait_share: float | None) -> Bottleneck | None:
    """Return what holds a run back; None if nothing does or if unknown. Shares are of the elapsed time.

    A GPU that is idle for a tenth of a step waits for its host (`schema.rank.HOST_BOUND_IDLE`). If that waits for the
    loader for a tenth, and for half of the idle time, the run is loader-bound. On a CPU every wait counts.
    """
    waits_for_host = starved(idle_share)
    if waits_for_host is False:
        return None
    if data_wait_share is not None and data_wait_share >= max(LOADER_BOUND_WAIT, (idle_share or 0.0) / 2):
        return Bottleneck("loader-bound", data_wait_share)
    return Bottleneck("host-bound", idle_share) if waits_for_host and idle_share is not None else None


def bottleneck_of(record: Record) -> Bottleneck | None:
    """Return what holds a record's run back, an older one's by its profile and samples; None without a summary too."""
    if (summary := record.summary) is None:
        return None
    idle_share = summary.idle_share
    if idle_share is None and record.profile is not None:
        times = step_times(record)
        idle_share = record.profile.idle_share(times.mean_s if times else summary.step_time_s)
    return bottleneck(idle_share, summary.data_wait_share)


class Straggler(NamedTuple):
    """A rank that is later than the others in each step. share: by how much of a step. where: the part that is slow."""

    rank: int
    share: float
    where: str

    def __str__(self) -> str:
        return f"spends {self.share * 100:.0f} % of a step more than the other ranks {self.where}"


def straggler(samples: Sequence[RankSamples]) -> Straggler | None:
    """Return the straggler; None if no rank is later by LATE_SHARE of a step, or if unknown. samples: one per rank."""
    if len(samples) < 2 or min(len(rank.step_s) for rank in samples) < FEWEST_STEPS:
        return None
    step_s = median(longest_rank([rank.step_s for rank in samples]))
    found = []
    for where, of in MEASURES.items():
        each = [(median(series), rank.rank) for rank in samples if (series := of(rank))]
        if len(each) == len(samples):
            late_s, latest = max(each, key=lambda one: one[0])
            others_s = median(value for value, rank in each if rank != latest)
            found.append(Straggler(latest, (late_s - others_s) / step_s, where))
    worst = max(found, key=lambda one: one.share, default=None)
    return worst if worst is not None and worst.share >= LATE_SHARE else None


def figures(
    samples: Sequence[RankSamples],
    units_per_step: int,
    telemetry: Sequence[RankTelemetry] = (),
    on_gpu: bool = False,
    profile: Profile | None = None,
) -> dict[str, Any]:
    """Return fields of a `Summary` by name; None is unknown. samples, telemetry: one entry per rank, in order of ranks.
    units_per_step: of all ranks. profile: rank 0's, as the losses. Host time and the parts of a step are the slowest
    rank's medians; parts are None if any rank lacks them. Raises ValueError for no ranks, or unequal steps.
    """
    steps = longest_rank([rank.step_s for rank in samples])
    step_time_s = fmean(steps)
    data_wait_s = max(fmean(rank.data_wait_s) for rank in samples)
    joules_per_unit, units_per_kwh = gpu.energy(telemetry, units_per_step * len(steps)) if on_gpu else (None, None)
    # The lead of the rank that is nearest to starving; None if any rank has none.
    leads = [rank.host_lead_s for rank in samples if rank.host_lead_s]

    def part(of_ranks: Sequence[tuple[float, ...] | None]) -> float | None:
        known = [one for one in of_ranks if one]
        return median(slowest_rank(known)) if len(known) == len(samples) else None

    return {
        "step_time_s": step_time_s,
        "median_step_s": median(steps),
        "slow_steps": slow_steps(steps),
        "throughput_per_s": units_per_step / step_time_s,
        "data_wait_s": data_wait_s,
        "data_wait_share": data_wait_s / step_time_s,
        "host_s": median(slowest_rank([rank.host_s for rank in samples])),
        "host_lead_s": min(map(median, leads)) if len(leads) == len(samples) else None,
        "idle_share": profile.idle_share(step_time_s) if profile else None,
        **{
            name: part([getattr(rank, name) for rank in samples]) for name in ("forward_s", "backward_s", "optimizer_s")
        },
        "joules_per_unit": joules_per_unit,
        "units_per_kwh": units_per_kwh,
        "sm_clock_mhz": gpu.median_sm_clock(telemetry),
        "loss_first": samples[0].loss[0],
        "loss_last": samples[0].loss[-1],
    }


def summarize(
    samples: Sequence[RankSamples],
    facts: WorkloadFacts,
    telemetry: Sequence[RankTelemetry] = (),
    on_gpu: bool = False,
    profile: Profile | None = None,
) -> Summary:
    # It imports numpy, for which a reader of records has no use.
    from fp8bench.stats.steadiness import steadiness

    units_per_step = facts.units_per_step * len(samples)
    steps = longest_rank([rank.step_s for rank in samples])
    recompilations, retries = (
        max((count for count in counts if count is not None), default=None)
        for counts in zip(*((rank.recompilations, rank.allocator_retries) for rank in samples), strict=True)
    )
    return Summary(
        **figures(samples, units_per_step, telemetry, on_gpu, profile),
        step_time_ci_s=None,
        unit=facts.unit,
        units_per_step=units_per_step,
        flops_per_step=facts.flops_per_step * len(samples),
        steadiness=steadiness(steps, recompilations, retries),
        flags=gpu.flags(telemetry) if on_gpu else (),
    )


LEAD_IN = 5
"""Steps between the emptied queue and the first timed step: a loader that keeps up has caught up after the first of
them, and the host is as far ahead as it gets after one or two.
"""

PACE_STEPS = 5
"""The last steps of warm-up whose median is the pace: the first few compile, allocate and tune. If what is timed is
decided after warm-up, as it is in a measurement, as many are run again.
"""

SPLIT_STEPS = 10  # from which the split of a replayed step is read

PROOF_STEPS = 3
"""Steps that are compared with the same steps plainly eager. One would not show a batch that is read again, nor scales
that follow from the step before.
"""

PROFILED_STEPS = 3  # show what every other step does, in a trace of some tens of megabytes
SPARE = 1.1  # timed steps may be a little faster than warm-up's, but must last
MOST_STEPS = 100_000  # even if warm-up's steps took next to nothing


class Length(NamedTuple):
    """What is requested: the steps of warm-up, and the minimum number and time of the timed steps."""

    warmup: int
    steps: int
    min_time_s: float = 0.0


def timed_steps(length: Length, warmup_step_s: Sequence[float], queue: int = 0) -> int:
    """Return how many steps to time: as many as requested, and as many as last as long as requested at warm-up's pace
    (unknown without warm-up), rounded up to complete queues. queue: how many batches the loader makes ahead; its
    processes deliver in bursts, and part of a queue may contain a burst without the wait before it.
    """
    pace = pace_s(warmup_step_s)
    for_time = min(MOST_STEPS, math.ceil(length.min_time_s * SPARE / pace)) if pace > 0 else 0
    steps = max(length.steps, for_time)
    return -(-steps // queue) * queue if queue else steps


def pace_s(warmup_step_s: Sequence[float]) -> float:
    """Return the seconds of a step at the end of warm-up; 0 without warm-up."""
    paces = (warmup_step_s[1:] or warmup_step_s)[-PACE_STEPS:]
    return median(paces) if paces else 0.0


def steps_in_all(length: Length, step_s: float, queue: int, replayed: bool) -> int:
    """Return how many steps a process runs. step_s: expected seconds. replayed: a graph, split in further steps."""
    around = PACE_STEPS + 2 * PROOF_STEPS + 1 + (SPLIT_STEPS if replayed else 0)
    return length.warmup + LEAD_IN + timed_steps(length, (step_s,), queue) + PROFILED_STEPS + around
