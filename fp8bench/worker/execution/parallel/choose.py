"""Chooses how ranks are joined: as requested with `--parallel` and `--tensor-parallel`, or by what fits.

`auto` takes DDP while weights, gradients and the optimizer's state take at most half of each GPU's memory (activations,
autocast's bf16 copies and DDP's buckets need the rest), otherwise FSDP. If all ranks share layers in one group (tensor
parallel), that alone joins them; several such groups are joined by FSDP, because DDP does not take DTensors.
"""

from collections.abc import Callable

import torch

from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import kept_bytes
from fp8bench.worker.execution.checkpointing import weights_of
from fp8bench.worker.execution.parallel.fsdp import FSDP
from fp8bench.worker.execution.parallel.strategy import DDP, Strategy, mesh_of
from fp8bench.worker.execution.parallel.tensor import OwnTensorParallel, TensorParallel
from fp8bench.worker.parallel import largest
from fp8bench.workloads.protocol import Workload


def choose_strategy(config: RunConfig, mode: Mode, workload: Workload, device: torch.device) -> Strategy:
    """Choose; every rank calls this. Raises ModeUnavailable if the mode cannot be joined as requested."""
    if config.tensor_parallel > 1:
        return _sharing_layers(config, mode, device)
    if stated(mode, "joined_alone"):
        return DDP("DDP around a single rank was requested with --te-switch", alone=True)
    if config.parallel != "auto":
        reason = f"requested with --parallel {config.parallel}"
        if config.parallel == "fsdp":
            return FSDP(reason)
        return DDP(reason if config.world_size > 1 else f"{reason}; a single rank has no other rank to share with")
    if device.type != "cuda":
        return DDP("auto: on a CPU")
    if config.world_size == 1:
        return DDP("auto: a single rank has no other rank to share with")
    memory = -largest(-torch.cuda.get_device_properties(device).total_memory, device)
    return by_memory(kept_bytes(parameters(workload), config.optimizer), memory)


def _sharing_layers(config: RunConfig, mode: Mode, device: torch.device) -> Strategy:
    refusal: str | None = stated(mode, "tensor_parallel_refusal")
    if refusal:
        raise ModeUnavailable(refusal, "Omit --tensor-parallel, or use another mode")
    reason = f"requested with --tensor-parallel {config.tensor_parallel}"
    mesh = mesh_of(config.tensor_parallel, device)
    tensor = OwnTensorParallel(mesh, reason, mode) if hasattr(mode, "divide") else TensorParallel(mesh, reason)
    if config.parallel == "fsdp":
        return FSDP(f"{reason} and --parallel fsdp", tensor)
    if config.world_size == config.tensor_parallel:
        return tensor
    return FSDP(f"{reason}; auto: FSDP2 joins groups that share layers", tensor)


def by_memory(kept: int, memory: int) -> Strategy:
    """Choose by memory. kept: bytes of weights, gradients and optimizer state. memory: bytes of the smallest GPU."""
    join, half = (DDP, "at most half") if 2 * kept <= memory else (FSDP, "more than half")
    what = f"weights, gradients and optimizer state take {kept / 2**30:.1f} GiB"
    return join(f"auto: {what}, {half} of the {memory / 2**30:.1f} GiB of a GPU")


def parameters(workload: Workload) -> int:
    """Return the number of parameters that the workload trains, by its own count if it has one; nothing is computed."""
    count: Callable[[], int] | None = getattr(workload, "parameters", None)
    return count() if count is not None else weights_of(workload.build(torch.device("meta")))


def samples_of(config: RunConfig, rank: int) -> tuple[int, int]:
    """Return (samples in this rank's batches, number of their group): ranks that share layers share samples."""
    return config.batch_size * config.tensor_parallel, rank // config.tensor_parallel
