"""Memory of a GPU or a host: whether it can hold what training keeps, before anything is built; where copies for a
proof are kept; and its peaks.

Weights, gradients and the optimizer's state are float32: 12 bytes a parameter with SGD and its momentum, 16 with Adam.
Activations are not known beforehand, but a model that cannot fit with any batch is refused within seconds. Ranks that
share weights each keep a part, but the gate looks at the complete model. On a host an allocation does not fail: the
kernel would end a process, after minutes without memory for anything else.

Copies of what a step changes are kept on the GPU if there is room next to the step: the way to the host and back takes
some 20 s for ViT-Huge in every process.
"""

import resource
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fp8bench.machine.host import free_host_bytes
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import kept_bytes
from fp8bench.schema.rank import RankMemory
from fp8bench.workloads.protocol import Workload

# The step's share of the memory, in units of warm-up's peak: plain steps and a graph's pool may need more blocks.
SPARE = 1.25


class Room(NamedTuple):
    """What a rank may use. place: where it is free; remedy: what has more."""

    free_bytes: int
    place: str = "of this GPU are free"
    remedy: str = "--parallel fsdp on several GPUs, one with more memory"


def room_on(device: torch.device, ranks: int) -> Room | None:
    """Return the room that each of this machine's `ranks` has, or None if it is unknown."""
    if device.type == "cuda":
        return Room(torch.cuda.mem_get_info(device)[0])
    free = free_host_bytes()
    if free is None:
        return None
    processes = "one process" if ranks == 1 else f"each of {ranks} processes"
    return Room(free // ranks, f"are free for {processes} of this host", "a host with more memory, a GPU")


def require_memory(config: RunConfig, workload: Workload, device: torch.device, sharded: bool) -> None:
    """Raise ModeUnavailable if a rank has no room for what it keeps. sharded: whether ranks share weights. A workload
    that does not say how many parameters it has is not examined.
    """
    count: Callable[[], int] | None = getattr(workload, "parameters", None)
    room = room_on(device, config.world_size // config.nodes)
    if room is None or count is None:
        return
    parameters, parts = count(), config.sharers if sharded else 1
    # The gate looks at weights and gradients.
    needed, gate = kept_bytes(parameters, config.optimizer) // parts, kept_bytes(parameters, "none")
    free, billions, helps = room.free_bytes, f"{parameters / 1e9:.2f}e9 parameters", room.remedy
    why = f"for weights, gradients and the state of {config.optimizer} ({billions})"
    if parts > 1:
        what = "weights and gradients of the whole model, which the gate looks at" if gate >= needed else "its part"
        why = f"a rank for {what} ({billions}, {parts} ranks)"
        helps, needed = "more memory a rank, more ranks on other hosts,", max(gate, needed)
    elif kept_bytes(parameters, "sgd") <= free:
        helps = f"--optimizer sgd, {helps}"
    if needed > free:
        wanted, there, missing = (f"{size / 2**30:.1f} GiB" for size in (needed, free, needed - free))
        raise ModeUnavailable(
            f"{config.workload} needs {wanted} {why}, and {there} {room.place}: {missing} are missing",
            f"No batch size helps: use {helps} or a smaller workload",
        )


def copied(tensors: Iterable[Tensor], place: torch.device) -> list[Tensor]:
    return [tensor.detach().to(place, copy=True) for tensor in tensors]


def size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of the GPU. A host's are not known so well that a proof could depend on them."""
    if device.type != "cuda":
        return sys.maxsize
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def place_for(needed: int, device: torch.device) -> torch.device:
    """Return where copies of `needed` bytes are kept, after warm-up: on `device`, or on the host."""
    if device.type != "cuda":
        return torch.device("cpu")
    own = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return device if fits(needed, torch.cuda.max_memory_reserved(device), own) else torch.device("cpu")


def fits(needed: int, peak: int, memory: int) -> bool:
    """Return whether the copies fit. needed: their bytes. peak: of warm-up. memory: of the GPU, for this process."""
    return needed + SPARE * peak <= memory


def reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def allocated(device: torch.device) -> int:
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


def allocated_peak(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


def peak_memory(device: torch.device, rank: int, captured: int = 0) -> RankMemory:
    """Return the peaks since the last reset, the host's since its start. captured: bytes, in a graph's capture."""
    on_gpu = device.type == "cuda"
    return RankMemory(
        rank=rank,
        peak_allocated_bytes=max(captured, allocated_peak(device)) if on_gpu else None,
        peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
        peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
