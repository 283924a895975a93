"""The summary of a record: the figures that follow from raw samples, telemetry and the profile alone, which a launcher
writes and a reader computes again, and what its steps show of their stability. One process has no interval.

The step time is elapsed time over steps, of the rank that took longest: money and energy are spent on elapsed time, and
a step that took twice as long is paid for twice.
"""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from fp8bench.schema.rank import Profile, RankSamples, RankTelemetry, WorkloadFacts
from fp8bench.schema.record import Summary
from fp8bench.stats import telemetry as gpu
from fp8bench.stats.steps import longest_rank, slow_steps, slowest_rank


def figures(
    samples: Sequence[RankSamples],
    units_per_step: int,
    telemetry: Sequence[RankTelemetry] = (),
    on_gpu: bool = False,
    profile: Profile | None = None,
) -> dict[str, Any]:
    """Return fields of a `Summary` by name; None is unknown. samples, telemetry: one entry per rank, in order of ranks.
    units_per_step: of all ranks together. profile: rank 0's.

    The losses are rank 0's. Host time and the parts of a step are the slowest rank's medians; parts are of the steps
    for which they were measured, and None if any rank lacks them. Raises ValueError if there are no ranks, or if ranks
    counted different steps.
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
    """Return the summary. Arguments and errors as in `figures`."""
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
