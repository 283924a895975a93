"""One rank, from its birth to its report.

join the group -> check the mode -> build -> parity gate -> DDP and torch.compile -> train -> report
"""

import gc
import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench import registry
from fp8bench.modes.protocol import Mode
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid, ModeUnavailable, RunFailed
from fp8bench.schema.rank_report import RankReport, WorkloadFacts
from fp8bench.schema.record import CompileEvidence, GpuState, RankSamples, RankTelemetry, Status
from fp8bench.worker import parity
from fp8bench.worker.clock import clock_for
from fp8bench.worker.environment import environment
from fp8bench.worker.evidence import count_graphs, decide_compile, to_evidence
from fp8bench.worker.group import agreement, process_group
from fp8bench.worker.loop import OPTIMIZER, LoopResult, sgd, train
from fp8bench.worker.telemetry import gpu_state, peak_memory, reset_peaks
from fp8bench.workloads.protocol import Workload

_STATUS: dict[type[Fp8benchError], Status] = {ModeUnavailable: "unsupported", MeasurementInvalid: "invalid"}


@contextmanager
def rank_group(config: RunConfig, rank: int, local_rank: int, init_method: str) -> Iterator[torch.device]:
    """This rank's device, while the process group stands. Raises ModeUnavailable where torch sees no such device."""
    device = _device(config, local_rank)
    with process_group(rank, config.world_size, device, init_method):
        yield device


def measure(config: RunConfig, rank: int, device: torch.device) -> RankReport:
    """Run one rank of `config` inside its group; a refusal is a report too, with what was found before it.

    Raises RunFailed when the GPU's memory does not suffice: siblings may be waiting, and must be ended from outside.
    """
    found: dict[str, Any] = {"rank": rank}
    try:
        _stages(config, rank, device, found)
    except (ModeUnavailable, MeasurementInvalid) as refusal:
        return stopped(refusal, found)
    except torch.OutOfMemoryError as error:
        raise out_of_memory(rank, config.batch_size, error) from error
    return RankReport(**found)


def stopped(error: Fp8benchError, found: dict[str, Any]) -> RankReport:
    """The report of a rank that an error of ours stopped. found: its fields so far, `rank` among them."""
    return RankReport(**found, status=_STATUS.get(type(error), "failed"), reason=error.what, remedy=error.remedy)


def out_of_memory(rank: int, batch_size: int, error: BaseException) -> RunFailed:
    """Which rank, how much it asked for (in torch's words), and what to do."""
    asked = next((part for part in str(error).split(". ") if "ried to allocate" in part), str(error).split("\n")[0])
    return RunFailed(
        f"rank {rank} ran out of GPU memory at batch size {batch_size}: {asked.strip().rstrip('.')}",
        f"Lower --batch-size (now {batch_size} a GPU), or end the other processes on this GPU",
    )


def _device(config: RunConfig, local_rank: int) -> torch.device:
    if config.device == "cpu":
        # Ranks share the cores; more threads than cores would make each slower.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // config.world_size))
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if visible <= local_rank:
        raise ModeUnavailable(
            f"torch sees {visible} CUDA devices, which leaves none for local rank {local_rank}",
            "Install a CUDA build of torch that fits the driver, or lower --gpus",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _stages(config: RunConfig, rank: int, device: torch.device, found: dict[str, Any]) -> None:
    """Fill `found` with the report's fields, stage by stage."""
    mode = make_mode(config)
    workload = make_workload(config)
    with agreement():
        found["environment"] = environment(device)
        mode.check(device)
        compiled = decide_compile(config.compile, parity.stated(mode, "compile_policy"), device)
    found["facts"] = _facts(workload, config.batch_size)

    # The gate wants one batch, for which no loader need start its processes; the images are the same.
    proof = parity.prove(mode, make_workload(config.model_copy(update={"data": "device"})), rank, device)
    found["parity"] = proof.parity
    found["evidence"] = to_evidence(mode.evidence(proof.model), proof.kernels, compiled)
    with agreement():
        if not proof.parity.passed:
            raise MeasurementInvalid(
                f"{config.mode_label} failed the parity gate: {proof.parity.reason}",
                "Do not use its speed: mend the block or its conversion",
            )

    reset_peaks(device)
    before = gpu_state(device)
    after: list[GpuState | None] = []
    result = _train(
        config, rank, device, mode, workload, proof.model, compiled, lambda: after.append(gpu_state(device))
    )
    found["samples"] = to_samples(rank, config.warmup, result)
    found["memory"] = peak_memory(device, rank)
    found["telemetry"] = RankTelemetry(rank=rank, before=before, after=after[0])
    found["evidence"] = to_evidence(mode.evidence(proof.model), proof.kernels, count_graphs(compiled))
    with agreement():
        _require_finite(rank, result.losses)


def make_mode(config: RunConfig) -> Mode:
    """The mode's object, with its recipe and the fields of the configuration that its class names."""
    entry, recipe = registry.find_mode(config.mode_label)
    mode_class = registry.load(entry)
    options = {name: getattr(config, name) for name in parity.stated(mode_class, "config_fields")}
    mode: Mode = mode_class(recipe, **options)
    return mode


def make_workload(config: RunConfig) -> Workload:
    """The workload's object."""
    workload_class = registry.load(registry.find_workload(config.workload))
    workload: Workload = workload_class(data=config.data, workers=config.workers, seed=config.seed)
    return workload


def to_samples(rank: int, warmup: int, result: LoopResult) -> RankSamples:
    """Split warm-up from timed steps; a loss that is not finite becomes null."""
    return RankSamples(
        rank=rank,
        warmup_step_s=tuple(result.times.step_s[:warmup]),
        step_s=tuple(result.times.step_s[warmup:]),
        host_s=tuple(result.times.host_s[warmup:]),
        data_wait_s=tuple(result.times.data_wait_s[warmup:]),
        host_lead_s=None if result.times.host_lead_s is None else tuple(result.times.host_lead_s[warmup:]),
        loss=tuple(loss if math.isfinite(loss) else None for loss in result.losses),
    )


def _facts(workload: Workload, batch_size: int) -> WorkloadFacts:
    return WorkloadFacts(
        unit=workload.unit,
        units_per_step=workload.units_per_step(batch_size),
        flops_per_step=workload.flops_per_step(batch_size),
        sizes=workload.sizes(),
        optimizer=OPTIMIZER,
    )


def _train(
    config: RunConfig,
    rank: int,
    device: torch.device,
    mode: Mode,
    workload: Workload,
    model: nn.Module,
    compiled: CompileEvidence,
    after_last_step: Callable[[], None],
) -> LoopResult:
    # Compiled first and wrapped second: around a compiled model, DDP sees one backward; the other way round,
    # torch.compile cuts the model at every gradient bucket (32 blocks of ViT-Huge make about a hundred).
    inner = torch.compile(model) if compiled.enabled else model
    replica = DistributedDataParallel(
        inner, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )
    batches = workload.batches(config.batch_size, rank, device)
    # What has been made so far stays: the collector need not walk it again and again while steps are timed.
    gc.collect()
    gc.freeze()
    steps = config.warmup + config.steps
    try:
        return train(replica, sgd(replica), mode, workload, batches, device, steps, clock_for(device), after_last_step)
    finally:
        # A generator over a DataLoader ends its processes here, and not some time while the interpreter goes down.
        if isinstance(batches, Generator):
            batches.close()


def _require_finite(rank: int, losses: list[float]) -> None:
    bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        raise MeasurementInvalid(
            f"the loss on rank {rank} is {losses[bad]} at step {bad} (warm-up included)",
            "Use a recipe with a wider range (te-fp8:current, torchao-float8:rowwise), or another seed",
        )
