"""Warm-up and timed steps of one rank: the samples, the GPU's telemetry over the timed ones, and whether anything was
compiled or allocated anew while they ran.
"""

import math
from dataclasses import dataclass

import torch

from fp8bench.schema.record import CompileEvidence, RankSamples
from fp8bench.schema.telemetry import RankTelemetry
from fp8bench.worker.clock import StepTimes, clock_for
from fp8bench.worker.compilation import Compilations, compilations
from fp8bench.worker.compiled_parity import CompiledErrors
from fp8bench.worker.loop import LoopResult, Training, train
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.telemetry import Sampler

SAMPLER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Timed:
    """losses: one a step, warm-up first. after_first_step, at_end: what torch.compile had done by then."""

    samples: RankSamples
    telemetry: RankTelemetry | None
    losses: list[float]
    after_first_step: Compilations
    at_end: Compilations


def time_steps(training: Training, rank: int, warmup: int, steps: int, progress: ProgressFile) -> Timed:
    """Train for warmup + steps steps."""
    device = training.device
    watch = _Watch(progress, warmup, device)
    with Sampler(device, rank) as sampler:
        sampler.wait_ready(SAMPLER_TIMEOUT_S)
        result = train(training, warmup + steps, clock_for(device), watch)
        at_end, retries = compilations(), _allocator_retries(device)
        telemetry = sampler.telemetry(*_timed_window(result.times, warmup))
    recompilations = at_end.frames - watch.at_timing.frames
    return Timed(
        samples=to_samples(rank, warmup, result, recompilations, _difference(watch.retries, retries)),
        telemetry=telemetry,
        losses=result.losses,
        after_first_step=watch.after_first_step,
        at_end=at_end,
    )


class _Watch:
    """Called before each step: tells the launcher, and takes down the counts at which timing begins."""

    def __init__(self, progress: ProgressFile, warmup: int, device: torch.device) -> None:
        self._progress = progress
        self._warmup = warmup
        self._device = device
        self.after_first_step = compilations()
        self.at_timing = self.after_first_step
        self.retries: int | None = None

    def __call__(self, step: int) -> None:
        self._progress.step()
        if step == 1:
            self.after_first_step = compilations()
        if step == self._warmup:
            self.at_timing = compilations()
            self.retries = _allocator_retries(self._device)
            self._progress.stage("timing")


def compiled_to(decided: CompileEvidence, timed: Timed, errors: CompiledErrors | None = None) -> CompileEvidence:
    """Fill in what torch.compile made of the model, and how far that is from the model; nothing where it was off."""
    if not decided.enabled:
        return decided
    end = timed.at_end
    return decided.model_copy(
        update={
            "graphs": end.graphs,
            "split_graphs": end.split_graphs,
            "graph_breaks": end.graph_breaks,
            "graph_break_reasons": end.graph_break_reasons,
            "recompilations": end.frames - timed.after_first_step.frames,
            "logits_error": _finite(errors.logits) if errors else None,
            "weight_gradient_error": _finite(errors.weight_gradient) if errors else None,
        }
    )


def to_samples(
    rank: int, warmup: int, result: LoopResult, recompilations: int | None, allocator_retries: int | None
) -> RankSamples:
    """Split warm-up from timed steps; a loss that is not finite becomes null."""
    times = result.times
    return RankSamples(
        rank=rank,
        warmup_step_s=tuple(times.step_s[:warmup]),
        step_s=tuple(times.step_s[warmup:]),
        host_s=tuple(times.host_s[warmup:]),
        data_wait_s=tuple(times.data_wait_s[warmup:]),
        forward_s=tuple(times.forward_s[warmup:]),
        backward_s=tuple(times.backward_s[warmup:]),
        optimizer_s=tuple(times.optimizer_s[warmup:]),
        host_lead_s=None if times.host_lead_s is None else tuple(times.host_lead_s[warmup:]),
        recompilations=recompilations,
        allocator_retries=allocator_retries,
        loss=tuple(map(_finite, result.losses)),
    )


def _timed_window(times: StepTimes, warmup: int) -> tuple[float, float]:
    """perf_counter at the start of the first timed step and at the end of the last, by the device's clock."""
    return times.began_s + sum(times.step_s[:warmup]), times.began_s + sum(times.step_s)


def _allocator_retries(device: torch.device) -> int | None:
    """How often torch's allocator had to give memory back and ask again; None on a CPU."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0)) if device.type == "cuda" else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
