"""From all ranks' samples and the workload's facts to the summary that a record carries."""

from collections.abc import Sequence

from fp8bench.schema.rank_report import WorkloadFacts
from fp8bench.schema.record import RankSamples, Summary
from fp8bench.stats.steps import median_interval, slowest_rank, typical


def summarize(samples: Sequence[RankSamples], facts: WorkloadFacts) -> Summary:
    """samples: one entry a rank, by rank. The losses are rank 0's; data wait and host time the slowest rank's
    medians.
    """
    steps = slowest_rank([rank.step_s for rank in samples])
    step_time_s = typical(steps)
    data_wait_s = typical(slowest_rank([rank.data_wait_s for rank in samples]))
    units_per_step = facts.units_per_step * len(samples)
    return Summary(
        step_time_s=step_time_s,
        step_time_ci_s=median_interval(steps),
        unit=facts.unit,
        units_per_step=units_per_step,
        throughput_per_s=units_per_step / step_time_s,
        data_wait_s=data_wait_s,
        data_wait_share=data_wait_s / step_time_s,
        host_s=typical(slowest_rank([rank.host_s for rank in samples])),
        host_lead_s=_smallest_lead(samples),
        flops_per_step=facts.flops_per_step * len(samples),
        loss_first=samples[0].loss[0],
        loss_last=samples[0].loss[-1],
    )


def _smallest_lead(samples: Sequence[RankSamples]) -> float | None:
    """The lead of the rank that is nearest to starving; None where any rank has none."""
    leads = [rank.host_lead_s for rank in samples if rank.host_lead_s is not None]
    return min(map(typical, leads)) if len(leads) == len(samples) else None
