"""Turns the spans of a trace into seconds per step for each purpose.

Every moment is counted once, even if several kernels ran in it. Communication yields to every other kernel: what
overlaps with one is hidden, costs nothing, and is omitted, so `nccl` is what communication really adds to a step. Among
other kernels, the one that started first gets the moment. So the categories add up to the time in which anything ran,
and the rest of a step is idle.

A kernel of NCCL also runs while it waits for other ranks, so exposed communication includes both waiting and sending.

The optimizer's kernels are identified by its annotation, whatever their names (a plain multiply is one of them).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from fp8bench.profiling.kernels import categorize
from fp8bench.profiling.spans import Span
from fp8bench.profiling.trace import Trace
from fp8bench.schema.rank import GEMMS, Category, KernelTime, Profile

LONGEST = 40
"""The number of kernels that a profile names. For ViT-Huge, each of the others is below a thousandth of a step."""

NANOSECONDS = 9


def breakdown(trace: Trace) -> Profile:
    """Return seconds per step, averaged over the trace's steps. The seconds of single kernels include hidden time."""
    categorized = [(span, _category(span, trace.metadata.device)) for span in trace.spans]
    others = [(span, category) for span, category in categorized if category != "nccl"]
    seconds: dict[Category, float] = defaultdict(float)
    for category, share in _first_come(others):
        seconds[category] += share
    communication = [(span, category) for span, category in categorized if category == "nccl"]
    if communication:
        seconds["nccl"] = _covered(categorized) - _covered(others)
    per_step = {category: _per_step(total, trace) for category, total in seconds.items()}
    return Profile(
        device=trace.metadata.device,
        steps=trace.metadata.steps,
        busy_s=round(sum(per_step.values()), NANOSECONDS),
        by_category=dict(sorted(per_step.items(), key=lambda item: -item[1])),
        nccl_s=_per_step(_covered(communication), trace),
        kernels=_kernel_times(categorized, trace),
    )


def _category(span: Span, device: Literal["cuda", "cpu"]) -> Category:
    category = categorize(span.name, device)
    return "optimizer" if span.in_optimizer and category != "nccl" else category


def _first_come(spans: Iterable[tuple[Span, Category]]) -> Iterator[tuple[Category, float]]:
    """Yield each span's time that no earlier span has taken. spans: in order of start."""
    taken = float("-inf")
    for span, category in spans:
        yield category, max(0.0, span.end_s - max(span.start_s, taken))
        taken = max(taken, span.end_s)


def _covered(spans: Iterable[tuple[Span, Category]]) -> float:
    """Return the seconds in which any of the spans ran. spans: in order of start."""
    return sum(share for _, share in _first_come(spans))


def _kernel_times(categorized: Iterable[tuple[Span, Category]], trace: Trace) -> tuple[KernelTime, ...]:
    """Return the longest kernels and every GEMM, longest first."""
    seconds: dict[tuple[str, Category], float] = defaultdict(float)
    calls: dict[tuple[str, Category], int] = defaultdict(int)
    for span, category in categorized:
        seconds[span.name, category] += span.duration_s
        calls[span.name, category] += not span.continued
    ordered = sorted(seconds, key=lambda key: (-seconds[key], key))
    return tuple(
        KernelTime(
            name=key[0],
            category=key[1],
            seconds_per_step=_per_step(seconds[key], trace),
            calls_per_step=calls[key] / trace.metadata.steps,
        )
        for place, key in enumerate(ordered)
        if place < LONGEST or key[1] in GEMMS
    )


def _per_step(total_s: float, trace: Trace) -> float:
    return max(0.0, round(total_s / trace.metadata.steps, NANOSECONDS))
