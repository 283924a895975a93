"""Warm-up and timed steps of one rank: the samples, the GPU's telemetry during the timed steps, and whether anything
was compiled or allocated again while they ran.

warm-up -> what will be timed is decided (`execution.decide`) -> the ranks agree on how many steps are timed -> what was
prefetched is dropped -> lead-in -> timed steps -> the split of a step, if the clock could not see it

The number of timed steps follows from warm-up's pace. What the loader made ahead is dropped; otherwise the timed steps
would live on it, and a loader that is too slow would go unnoticed. The lead-in, a few steps that are not timed, waits
for the first batches of the emptied loader and fills the launch queue again; it and the timed steps are one loop, which
never waits for the device: losses are read after the last step.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from fp8bench.schema.rank import CompileEvidence, RankSamples, RankTelemetry
from fp8bench.stats.steps import LEAD_IN, PACE_STEPS, SPLIT_STEPS, Length, pace_s, timed_steps
from fp8bench.worker.clock import HostClock, StepTimes, clock_for
from fp8bench.worker.execution.step import Launch
from fp8bench.worker.parallel import largest
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.rounding import finite
from fp8bench.worker.telemetry import Sampler
from fp8bench.workloads.protocol import Batch, prefetched


@dataclass(frozen=True)
class Compilations:
    """Compilations so far, each time counted. split_graphs: compiled from graphs, after DDP's buckets."""

    frames: int = 0
    graphs: int = 0
    split_graphs: int = 0
    graph_breaks: int = 0
    graph_break_reasons: tuple[str, ...] = ()
    seconds: float = 0.0


def compilations() -> Compilations:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return Compilations()
    counters, spent = dynamo.counters, dynamo.calculate_time_spent()
    breaks = counters["graph_break"]
    return Compilations(
        frames=counters["frames"]["total"],
        graphs=counters["stats"]["unique_graphs"],
        split_graphs=counters["aot_autograd"]["total"],
        graph_breaks=sum(breaks.values()),
        graph_break_reasons=tuple(str(reason).split("\n")[0][:160] for reason in list(breaks)[:5]),
        # torch's own clocks that together count all of the time, and none of it twice.
        seconds=sum(spent.get(phase, 0.0) for phase in ("entire_frame_compile", "entire_backward_compile")),
    )


def allocator_retries(device: torch.device) -> int | None:
    """Return how often torch's allocator had to free memory and try again; None on a CPU."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0)) if device.type == "cuda" else None


@dataclass(frozen=True)
class Training:
    launch: Launch
    batches: Iterator[Batch]
    device: torch.device
    clock: Callable[[torch.device], HostClock] = clock_for


def train(training: Training, steps: int, before_step: Callable[[int], None]) -> tuple[StepTimes, list[float]]:
    """Return times and losses. before_step: called with the step's number; its cost falls into the step before."""
    clock = training.clock(training.device)
    losses = torch.full((steps,), torch.nan, device=training.device)
    for step in range(steps):
        before_step(step)
        clock.start_step()
        batch = next(training.batches)
        clock.data_ready()
        losses[step].copy_(training.launch(batch, clock))
    return clock.finish(), losses.tolist()


@dataclass(frozen=True)
class Timed:
    """The result of timing. losses: one per step, warm-up first. after_first_step, at_end: compilations by then."""

    samples: RankSamples
    telemetry: RankTelemetry | None
    losses: list[float]
    after_first_step: Compilations
    at_end: Compilations


def time_steps(
    training: Training,
    rank: int,
    length: Length,
    progress: ProgressFile,
    decide: Callable[[Training], Training] = lambda warm: warm,
    ready: Callable[[], None] = lambda: None,
) -> Timed:
    """Warm up, then time steps; every rank calls this. decide: called after warm-up; returns what is timed, the same
    object if nothing changes. ready: called before the steps that lead to the timed ones.
    """
    device = training.device
    watch = _Watch(progress, device)
    with Sampler(device, rank) as sampler:
        sampler.wait_ready(10.0)
        times, losses = train(training, length.warmup, watch)
        warmup_s = times.step_s
        decided = decide(training)
        if decided is not training:
            # Warm-up ran at another pace.
            training = decided
            times, more = train(training, PACE_STEPS, watch)
            warmup_s, losses = warmup_s + times.step_s, losses + more
        queue = prefetched(training.batches)
        steps = largest(timed_steps(length, warmup_s, queue), device)
        for _ in range(queue):
            next(training.batches)
        ready()
        watch.agreed(steps, pace_s(warmup_s))
        times, more = train(training, LEAD_IN + steps, watch)
        at_end, retries = compilations(), allocator_retries(device)
        losses += more
        timed_from_s = times.began_s + sum(times.step_s[:LEAD_IN])
        telemetry = sampler.telemetry(timed_from_s, times.began_s + sum(times.step_s))
    split = training.launch.split(training.batches, SPLIT_STEPS)
    seen = {name: values[LEAD_IN:] for name, values in vars(times).items() if isinstance(values, list)}
    samples = RankSamples(
        rank=rank,
        warmup_step_s=(*warmup_s, *times.step_s[:LEAD_IN]),
        recompilations=at_end.frames - watch.at_timing.frames,
        allocator_retries=None if watch.retries is None or retries is None else retries - watch.retries,
        loss=tuple(map(finite, losses)),
        **{name: tuple(values) for name, values in {**seen, **split}.items()},
    )
    return Timed(samples, telemetry, losses, watch.after_first_step, at_end)


class _Watch:
    """Called before each step: informs the launcher, and keeps the counts at which timing begins."""

    def __init__(self, progress: ProgressFile, device: torch.device) -> None:
        self._progress = progress
        self._timed_from: int | None = None
        self._device = device
        self._step = 0
        self.after_first_step = self.at_timing = compilations()
        self.retries: int | None = None

    def agreed(self, steps: int, pace: float) -> None:
        """The lead-in begins now. pace: the expected seconds of each step."""
        self._timed_from = self._step + LEAD_IN
        self._progress.announce(self._timed_from + steps, pace)

    def __call__(self, _step_of_loop: int) -> None:
        self._progress.step()
        if self._step == 1:
            self.after_first_step = compilations()
        if self._step == self._timed_from:
            self.at_timing = compilations()
            self.retries = allocator_retries(self._device)
            self._progress.stage("timing")
        self._step += 1


def compiled_to(decided: CompileEvidence, after_first_step: Compilations, end: Compilations) -> CompileEvidence:
    if not decided.enabled:
        return decided
    counted = {name: value for name, value in vars(end).items() if name != "frames"}
    return decided.model_copy(update={**counted, "recompilations": end.frames - after_first_step.frames})
