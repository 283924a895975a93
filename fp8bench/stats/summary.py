"""Computes the summary of a record from all ranks' samples, their telemetry and the workload's facts.

The step time is elapsed time over steps, of the rank that took longest: money and energy are spent on elapsed time, and
a step that took twice as long is paid for twice. The median and the number of slow steps are kept as well.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median

from fp8bench.schema.rank import Profile, RankSamples, RankTelemetry, WorkloadFacts
from fp8bench.schema.record import Summary
from fp8bench.stats import telemetry as gpu
from fp8bench.stats.estimate import estimate
from fp8bench.stats.steadiness import steadiness
from fp8bench.stats.steps import longest_rank, slow_steps, slowest_rank


def summarize(
    samples: Sequence[RankSamples],
    facts: WorkloadFacts,
    telemetry: Sequence[RankTelemetry] = (),
    on_gpu: bool = False,
    profile: Profile | None = None,
) -> Summary:
    """Return the summary. samples, telemetry: one entry per rank, in order of ranks. profile: rank 0's. The losses are
    rank 0's. Host time and the parts of a step are the slowest rank's medians. Parts are of the steps for which they
    were measured, which need not be the timed ones. The interval is about this process group only (see stats.estimate).

    Raises ValueError if there are no ranks, or if ranks counted different steps.
    """
    steps = longest_rank([rank.step_s for rank in samples])
    found = estimate([steps])
    step_time_s = fmean(steps)
    data_wait_s = max(fmean(rank.data_wait_s) for rank in samples)
    units_per_step = facts.units_per_step * len(samples)
    joules_per_unit, units_per_kwh = gpu.energy(telemetry, units_per_step * len(steps)) if on_gpu else (None, None)
    steady = steadiness(
        steps,
        _most([rank.recompilations for rank in samples]),
        _most([rank.allocator_retries for rank in samples]),
    )
    return Summary(
        step_time_s=step_time_s,
        step_time_ci_s=found.interval,
        median_step_s=median(steps),
        slow_steps=slow_steps(steps),
        unit=facts.unit,
        units_per_step=units_per_step,
        throughput_per_s=units_per_step / step_time_s,
        data_wait_s=data_wait_s,
        data_wait_share=data_wait_s / step_time_s,
        host_s=median(slowest_rank([rank.host_s for rank in samples])),
        host_lead_s=_smallest_lead(samples),
        idle_share=profile.idle_share(step_time_s) if profile else None,
        forward_s=_part(samples, lambda rank: rank.forward_s),
        backward_s=_part(samples, lambda rank: rank.backward_s),
        optimizer_s=_part(samples, lambda rank: rank.optimizer_s),
        flops_per_step=facts.flops_per_step * len(samples),
        joules_per_unit=joules_per_unit,
        units_per_kwh=units_per_kwh,
        sm_clock_mhz=gpu.median_sm_clock(telemetry),
        steadiness=steady,
        flags=gpu.flags(telemetry) if on_gpu else (),
        loss_first=samples[0].loss[0],
        loss_last=samples[0].loss[-1],
    )


def _part(samples: Sequence[RankSamples], of: Callable[[RankSamples], tuple[float, ...] | None]) -> float | None:
    """Return the slowest rank's median of a part of the step; None if any rank lacks it.

    Steps that are replayed as a whole are not the ones whose parts were timed; there may be fewer of the latter.
    """
    parts = [part for rank in samples if (part := of(rank))]
    return median(slowest_rank(parts)) if len(parts) == len(samples) else None


def _most(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known, default=None)


def _smallest_lead(samples: Sequence[RankSamples]) -> float | None:
    """Return the lead of the rank that is nearest to starving; None if any rank has none."""
    leads = [rank.host_lead_s for rank in samples if rank.host_lead_s]
    return min(map(median, leads)) if len(leads) == len(samples) else None
