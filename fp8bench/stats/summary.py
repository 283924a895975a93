"""The summary of a record: the figures that a reader can compute again (`figures`), and what its steps show of their
stability. One process has no interval.
"""

from collections.abc import Sequence

from fp8bench.schema.rank import Profile, RankSamples, RankTelemetry, WorkloadFacts
from fp8bench.schema.record import Summary
from fp8bench.stats import telemetry as gpu
from fp8bench.stats.figures import figures
from fp8bench.stats.steadiness import steadiness
from fp8bench.stats.steps import longest_rank


def summarize(
    samples: Sequence[RankSamples],
    facts: WorkloadFacts,
    telemetry: Sequence[RankTelemetry] = (),
    on_gpu: bool = False,
    profile: Profile | None = None,
) -> Summary:
    """Return the summary. samples, telemetry: one entry per rank, in order of ranks. profile: rank 0's.

    Raises ValueError if there are no ranks, or if ranks counted different steps.
    """
    units_per_step = facts.units_per_step * len(samples)
    steps = longest_rank([rank.step_s for rank in samples])
    return Summary(
        **figures(samples, units_per_step, telemetry, on_gpu, profile),
        step_time_ci_s=None,
        unit=facts.unit,
        units_per_step=units_per_step,
        flops_per_step=facts.flops_per_step * len(samples),
        steadiness=steadiness(
            steps,
            _most([rank.recompilations for rank in samples]),
            _most([rank.allocator_retries for rank in samples]),
        ),
        flags=gpu.flags(telemetry) if on_gpu else (),
    )


def _most(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known, default=None)
