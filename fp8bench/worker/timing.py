"""Warm-up and timed steps of one rank: the samples, the GPU's telemetry over the timed ones, and whether anything was
compiled or allocated again while they ran.

warm-up -> what will be timed is decided (`execution.decide`) -> the ranks agree on how many steps are timed
-> what was prefetched is dropped -> lead-in -> timed steps -> the split of a step, where the clock could not see it

Timed steps are to be as many, and to last as long, as requested, so their number follows from warm-up's
pace. What the loader made ahead is dropped, else the timed steps would live on it, and a loader that is too slow would
not show. The lead-in, a few steps that are not timed, waits for the first batches of the emptied loader and fills the
launch queue again; it and the timed steps are one loop, which never waits for the device. Nothing is in that loop but
the next batch, the launch of a step (see `execution`), and the calls of the clock. Losses are kept on the device and
read after the last step, since reading one would wait for the device.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from fp8bench.schema.rank import CompileEvidence, RankSamples, RankTelemetry
from fp8bench.worker.clock import Clock, StepTimes, clock_for
from fp8bench.worker.counters import Compilations, allocator_retries, compilations
from fp8bench.worker.execution.step import Launch, Split
from fp8bench.worker.parallel import largest
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.relative import finite
from fp8bench.worker.telemetry import Sampler
from fp8bench.workloads.protocol import Batch, prefetched

SAMPLER_TIMEOUT_S = 10.0

LEAD_IN = 5
"""Steps between the emptied queue and the first timed step: a loader that keeps up has caught up after the first of
them, and the host is as far ahead as it gets after one or two.
"""

PACE_STEPS = 5
"""Of warm-up, the last ones, whose median is the pace: the first few compile, allocate and tune."""

SPARE = 1.1
"""More steps than the pace suggests: timed steps may be a little faster than warm-up's, and shall last all the same."""

SPLIT_STEPS = 10
"""From which the split of a replayed step is read."""

MOST_STEPS = 100_000
"""That a least time may need: a warm-up whose steps took next to nothing shall not make a run endless."""


@dataclass(frozen=True)
class LoopResult:
    """times and losses: one a step."""

    times: StepTimes
    losses: list[float]


@dataclass(frozen=True)
class Training:
    """What the loop needs. batches goes on where the last loop left it."""

    launch: Launch
    batches: Iterator[Batch]
    device: torch.device


def train(training: Training, steps: int, clock: Clock, before_step: Callable[[int], None]) -> LoopResult:
    """Train for `steps` steps.

    before_step: called with the step's number; what it costs falls into the step before.
    """
    losses = torch.full((steps,), torch.nan, device=training.device)
    for step in range(steps):
        before_step(step)
        clock.start_step()
        batch = next(training.batches)
        clock.data_ready()
        losses[step].copy_(training.launch(batch, clock))
    times = clock.finish()
    return LoopResult(times, losses.tolist())


@dataclass(frozen=True)
class Length:
    """How much is requested: steps of warm-up, and the least number and the least time of timed steps."""

    warmup: int
    steps: int
    min_time_s: float = 0.0


@dataclass(frozen=True)
class Timed:
    """losses: one a step, warm-up first. after_first_step, at_end: what torch.compile had done by then."""

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
) -> Timed:
    """Warm up, then time steps. Every rank of the group calls it, with the same length.

    decide: called after warm-up; returns what is timed: the same object where nothing changes.
    """
    device = training.device
    watch = _Watch(progress, device)
    with Sampler(device, rank) as sampler:
        sampler.wait_ready(SAMPLER_TIMEOUT_S)
        warm = train(training, length.warmup, clock_for(device), watch)
        decided = decide(training)
        if decided is not training:
            # Warm-up had another pace.
            training, warm = decided, _joined(warm, train(decided, PACE_STEPS, clock_for(device), watch))
        queue = prefetched(training.batches)
        steps = largest(timed_steps(length, warm.times.step_s, queue), device)
        for _ in range(queue):
            next(training.batches)
        watch.agreed(steps, pace_s(warm.times.step_s))
        result = train(training, LEAD_IN + steps, clock_for(device), watch)
        at_end, retries = compilations(), allocator_retries(device)
        telemetry = sampler.telemetry(*_timed_window(result.times, LEAD_IN))
    recompilations = at_end.frames - watch.at_timing.frames
    split = training.launch.split(training.batches, SPLIT_STEPS)
    return Timed(
        samples=to_samples(rank, warm, result, recompilations, _difference(watch.retries, retries), split),
        telemetry=telemetry,
        losses=warm.losses + result.losses,
        after_first_step=watch.after_first_step,
        at_end=at_end,
    )


def timed_steps(length: Length, warmup_step_s: Sequence[float], queue: int = 0) -> int:
    """How many steps to time: as many as requested, and as many as last as long as requested by warm-up's pace, in
    whole queues full. Without warm-up nothing is known of the pace, and the number alone counts.

    queue: how many batches the loader makes ahead. Its processes began together and deliver in bursts, and part of a
    queue may hold a burst without the wait before it.
    """
    pace = pace_s(warmup_step_s)
    for_time = min(MOST_STEPS, math.ceil(length.min_time_s * SPARE / pace)) if pace > 0 else 0
    steps = max(length.steps, for_time)
    return -(-steps // queue) * queue if queue else steps


def pace_s(warmup_step_s: Sequence[float]) -> float:
    """Seconds that a step of warm-up takes in the end; 0 without warm-up."""
    paces = (warmup_step_s[1:] or warmup_step_s)[-PACE_STEPS:]
    return median(paces) if paces else 0.0


class _Watch:
    """Called before each step: informs the launcher, and keeps the counts at which timing begins."""

    def __init__(self, progress: ProgressFile, device: torch.device) -> None:
        self._progress = progress
        self._timed_from: int | None = None
        self._device = device
        self._step = 0
        self.after_first_step = compilations()
        self.at_timing = self.after_first_step
        self.retries: int | None = None

    def agreed(self, steps: int, pace: float) -> None:
        """So many steps will be timed, of so many seconds each, after the lead-in that begins now."""
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
    """Fill in what torch.compile made of the model; nothing where it was off."""
    if not decided.enabled:
        return decided
    return decided.model_copy(
        update={
            "graphs": end.graphs,
            "split_graphs": end.split_graphs,
            "graph_breaks": end.graph_breaks,
            "graph_break_reasons": end.graph_break_reasons,
            "recompilations": end.frames - after_first_step.frames,
            "seconds": end.seconds,
        }
    )


def to_samples(
    rank: int,
    warm: LoopResult,
    result: LoopResult,
    recompilations: int | None,
    allocator_retries: int | None,
    split: Split | None = None,
) -> RankSamples:
    """warm: warm-up's loop; result: lead-in and timed steps; split: of steps of their own, where the clock saw none. A
    loss that is not finite becomes null.
    """
    times = result.times
    seen = {name: None if part is None else part[LEAD_IN:] for name, part in _passes(times).items()}
    passes = seen if split is None else _passes(split)
    return RankSamples(
        rank=rank,
        warmup_step_s=(*warm.times.step_s, *times.step_s[:LEAD_IN]),
        step_s=tuple(times.step_s[LEAD_IN:]),
        host_s=tuple(times.host_s[LEAD_IN:]),
        data_wait_s=tuple(times.data_wait_s[LEAD_IN:]),
        **{name: None if part is None else tuple(part) for name, part in passes.items()},
        host_lead_s=None if times.host_lead_s is None else tuple(times.host_lead_s[LEAD_IN:]),
        recompilations=recompilations,
        allocator_retries=allocator_retries,
        loss=tuple(map(finite, warm.losses + result.losses)),
    )


def _joined(first: LoopResult, second: LoopResult) -> LoopResult:
    """Two loops that were not timed; of their times only the steps' are wanted."""
    times = replace(second.times, step_s=first.times.step_s + second.times.step_s)
    return LoopResult(times, first.losses + second.losses)


def _passes(times: StepTimes | Split) -> dict[str, list[float] | None]:
    return {"forward_s": times.forward_s, "backward_s": times.backward_s, "optimizer_s": times.optimizer_s}


def _timed_window(times: StepTimes, before: int) -> tuple[float, float]:
    """perf_counter at the start of the first timed step and at the end of the last, by the device's clock. before: how
    many steps of the loop are not timed.
    """
    return times.began_s + sum(times.step_s[:before]), times.began_s + sum(times.step_s)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
