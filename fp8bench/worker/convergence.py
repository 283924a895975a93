"""One rank of one training on text: the same gate and the same execution as in timed runs, and then a curve.

Modes differ in how many steps warm-up and proof take, so everything that a step changes is restored before the first
step that counts: weights, buffers and fp8 scales to their earlier values, the optimizer's state to zero, in place,
because a CUDA graph holds its address. Validation runs eagerly in the mode's own precision and is not timed. The
learning rate rises, then stays: with one that falls until the end, no two modes could be compared at equal time.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import fmean
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.schema.config import RunConfig
from fp8bench.schema.converge import Curve, TextPlan, Validation
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.rank import RankReport
from fp8bench.stats.steps import PACE_STEPS, pace_s
from fp8bench.worker.clock import StepTimes, clock_for
from fp8bench.worker.execution.build import ready_to_train, uncompiled
from fp8bench.worker.execution.decide import decide
from fp8bench.worker.execution.step import Launch, Parts, Snapshot, forward, scales
from fp8bench.worker.main import gate_of, profile, proved, require_fp8_kernels
from fp8bench.worker.memory import peak_memory, reset_peaks
from fp8bench.worker.parallel import agreement, averaged
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.rank_report import NOT_PROFILED, Aside, reported, to_evidence
from fp8bench.worker.rounding import finite
from fp8bench.worker.subject import make_mode, make_workload
from fp8bench.worker.timing import Training, compilations, compiled_to, train
from fp8bench.workloads.on_text import OnText
from fp8bench.workloads.protocol import Batch, Workload
from fp8bench.workloads.text import byte_level, read


def measure(config: RunConfig, rank: int, device: torch.device, aside: Aside, plan: dict[str, Any]) -> RankReport:
    """Train one rank of `config`. plan: a `TextPlan`, as in JSON. Rank 0's report has the `Curve` in `found`. Raises as
    `worker.main.measure` does, and RunFailed if the text is not the one in the plan.
    """
    text_plan = TextPlan.model_validate(plan)
    return reported(lambda found: _stages(config, text_plan, rank, device, aside, found), rank, config, aside)


def _stages(
    config: RunConfig, plan: TextPlan, rank: int, device: torch.device, aside: Aside, found: dict[str, Any]
) -> None:
    progress = ProgressFile(aside.progress)
    mode = make_mode(config)
    model: Workload = byte_level(make_workload(config), plan.sizes)
    # The gate takes the model's own random tokens: in a repetitive text, samples may not differ at all.
    proof, choice = proved(config, mode, model, rank, device, found, progress)
    text = read(plan.text_file)
    if text.facts.sha256 != plan.text_sha256:
        why = f"{text.name} is not the text that this training began with"
        raise RunFailed(why, "Leave it as it is, and run again")
    workload = OnText(model, text, config.world_size, config.seed)

    reset_peaks(device)
    progress.stage("warming up")
    with ready_to_train(config, rank, device, mode, cast(Workload, workload), proof.model, choice) as (parts, batches):
        groups = parts.optimizer.param_groups
        for group in groups if device.type == "cuda" else ():
            # A captured step reads the rate each time, so it is a tensor.
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        # The start is needed once, and a GPU may have no room for it during training.
        start = Snapshot.of(parts, torch.device("cpu"))
        from_python = Training(Launch(parts), batches, device)
        warmup = choice.warmup(config.warmup)

        def steps(training: Training, count: int) -> tuple[StepTimes, list[float]]:
            return train(training, count, clock_for(device), lambda _step: progress.step())

        steps(from_python, 1)
        after_first_step = compilations()
        steps(from_python, warmup - 1)
        gate = gate_of(proof, lambda: make_mode(config))
        execution = decide(config, parts, choice, batches, gate, progress.stage)
        paced, _ = steps(replace(from_python, launch=execution.launch), PACE_STEPS)
        start.restore(parts)
        held_out = workload.validation(config.batch_size, plan.validation_batches, rank, device)
        training = Training(execution.launch, workload.batches(config.batch_size, rank, device), device)
        progress.announce(warmup + PACE_STEPS + config.steps, pace_s(paced.step_s))
        progress.stage("timing")

        def before(step: int) -> None:
            for group in groups if step <= plan.rate_warmup else ():
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate_at(step, plan))
                else:
                    group["lr"] = rate_at(step, plan)
            progress.step()

        validated = partial(validation_loss, parts, held_out, choice.compile.enabled)
        curve = trained(training, config.steps, plan.validate_every, before, validated)
        at_end = compilations()
        found["memory"] = peak_memory(device, rank, execution.captured_peak)
        progress.stage("profiling")
        on_gpu = device.type == "cuda"
        profiled = profile(training, rank, config.mode_label, fmean(curve.step_s), aside) if on_gpu else NOT_PROFILED
    compiled = compiled_to(choice.compile, after_first_step, at_end)
    found["evidence"] = to_evidence(mode, proof, compiled, execution, profiled)
    with agreement():
        require_fp8_kernels(config.mode_label, found["evidence"])
    found["found"] = curve.model_dump(mode="json") if rank == 0 else None
    progress.stage("done")


def rate_at(step: int, plan: TextPlan) -> float:
    """Return the learning rate of step number `step` (from 0): it rises in equal steps, then stays constant."""
    return plan.learning_rate * min(1.0, (step + 1) / (plan.rate_warmup + 1))


def trained(
    training: Training,
    steps: int,
    validate_every: int,
    before_step: Callable[[int], None],
    validated: Callable[[], float],
) -> Curve:
    """Train for so many steps, or until a loss is not finite; every rank calls this and gets the same curve.
    before_step: called with the step's number, from 0. validated: returns the held-out loss, the same on all ranks.
    """
    losses: list[float] = []
    times: list[float] = []
    begun, on_device = count(), partial(torch.tensor, dtype=torch.float64, device=training.device)
    points = [Validation(step=0, loss=finite(validated()))]
    while len(times) < steps and all(map(math.isfinite, losses[-validate_every:])) and points[-1].loss is not None:
        number = min(validate_every, steps - len(times))
        done, mine = train(training, number, clock_for(training.device), lambda _step: before_step(next(begun)))
        losses += averaged(on_device(mine)).tolist()
        slowest = on_device(done.step_s)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times += slowest.tolist()
        points.append(Validation(step=len(times), loss=finite(validated())))
    return Curve(train_loss=tuple(map(finite, losses)), step_s=tuple(times), validation=tuple(points))


def validation_loss(parts: Parts, batches: Sequence[Batch], compiled: bool) -> float:
    """Return the mean loss over these batches of all ranks, equal in number; nothing that a step reads is changed."""
    before = [scale.clone() for scale in scales(parts.mode, parts.plain)]
    with torch.no_grad(), uncompiled() if compiled else nullcontext():
        losses = torch.stack([forward(parts, parts.plain, batch).double() for batch in batches])
        for scale, kept in zip(scales(parts.mode, parts.plain), before, strict=True):
            scale.copy_(kept)
    return averaged(losses.mean()).item()
