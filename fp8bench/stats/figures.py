"""The figures of a summary that follow from raw samples, telemetry and the profile alone: a launcher writes them into a
record, and a reader computes them again.

The step time is elapsed time over steps, of the rank that took longest: money and energy are spent on elapsed time, and
a step that took twice as long is paid for twice. The median and the number of slow steps are kept as well.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from fp8bench.schema.rank import Profile, RankSamples, RankTelemetry
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

    The losses are rank 0's. Host time and the parts of a step are the slowest rank's medians. Parts are of the steps
    for which they were measured, which need not be the timed ones. Raises ValueError if there are no ranks, or if ranks
    counted different steps.
    """
    steps = longest_rank([rank.step_s for rank in samples])
    step_time_s = fmean(steps)
    data_wait_s = max(fmean(rank.data_wait_s) for rank in samples)
    joules_per_unit, units_per_kwh = gpu.energy(telemetry, units_per_step * len(steps)) if on_gpu else (None, None)
    return {
        "step_time_s": step_time_s,
        "median_step_s": median(steps),
        "slow_steps": slow_steps(steps),
        "throughput_per_s": units_per_step / step_time_s,
        "data_wait_s": data_wait_s,
        "data_wait_share": data_wait_s / step_time_s,
        "host_s": median(slowest_rank([rank.host_s for rank in samples])),
        "host_lead_s": _smallest_lead(samples),
        "idle_share": profile.idle_share(step_time_s) if profile else None,
        "forward_s": _part(samples, lambda rank: rank.forward_s),
        "backward_s": _part(samples, lambda rank: rank.backward_s),
        "optimizer_s": _part(samples, lambda rank: rank.optimizer_s),
        "joules_per_unit": joules_per_unit,
        "units_per_kwh": units_per_kwh,
        "sm_clock_mhz": gpu.median_sm_clock(telemetry),
        "loss_first": samples[0].loss[0],
        "loss_last": samples[0].loss[-1],
    }


def _part(samples: Sequence[RankSamples], of: Callable[[RankSamples], tuple[float, ...] | None]) -> float | None:
    """Return the slowest rank's median of a part of the step; None if any rank lacks it.

    Steps that are replayed as a whole are not the ones whose parts were timed; there may be fewer of the latter.
    """
    parts = [part for rank in samples if (part := of(rank))]
    return median(slowest_rank(parts)) if len(parts) == len(samples) else None


def _smallest_lead(samples: Sequence[RankSamples]) -> float | None:
    """Return the lead of the rank that is nearest to starving; None if any rank has none."""
    leads = [rank.host_lead_s for rank in samples if rank.host_lead_s]
    return min(map(median, leads)) if len(leads) == len(samples) else None
