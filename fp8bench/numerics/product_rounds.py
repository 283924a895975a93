"""One timing of the timings of several rounds."""

from collections.abc import Sequence

from fp8bench.schema.gemm import Timing
from fp8bench.stats.estimate import estimate


def pooled(rounds: Sequence[Timing]) -> Timing:
    """What all rounds say together of one product in one precision: the mean of their medians, with an interval that
    knows how far they lie apart, and the largest of their errors. A round that is not `ok` is the answer.

    rounds: at least one, in order; each with the samples of its own.
    """
    for timing in rounds:
        if timing.status != "ok":
            return timing
    first, *others = rounds
    if not others:
        return first
    found = estimate([timing.samples_s for timing in rounds], "median")
    errors = [timing.error for timing in rounds if timing.error is not None]
    return first.model_copy(
        update={
            "error": max(errors, default=None),
            "time_s": found.value,
            "time_ci_s": None if found.low is None or found.high is None else (found.low, found.high),
            "repetitions": sum(timing.repetitions for timing in rounds),
            "round_sizes": tuple(len(timing.samples_s) for timing in rounds),
            "samples_s": tuple(sample for timing in rounds for sample in timing.samples_s),
        }
    )
