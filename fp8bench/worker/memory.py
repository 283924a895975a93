"""Checks whether the memory of a GPU, or of a host, can hold what training keeps, before anything is built.

Weights, their gradients and the optimizer's state follow from the number of parameters, all in float32: 12 bytes each
with SGD and its momentum, 16 with Adam. Activations are not known beforehand, so what passes here may still run out of
memory; but a model that cannot fit with any batch is refused within seconds, with what is missing. Ranks that share a
model's weights each keep a part of these, but the gate looks at the complete model, weights and gradients, before it is
divided. A workload that does not say how many parameters it has is not examined. On a host an allocation does not fail:
the kernel would end a process, after minutes without memory for anything else.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fp8bench.machine.host import free_host_bytes
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import OptimizerName
from fp8bench.workloads.protocol import Workload

FLOAT32_BYTES = 4

STATES: dict[OptimizerName, int] = {"sgd": 1, "adam": 2, "adamw": 2, "none": 0}
"""The number of tensors as large as the weights that an optimizer keeps: momentum, or both moments."""


def kept_bytes(parameters: int, optimizer: OptimizerName) -> int:
    """Return the bytes of weights, gradients and optimizer state of a model whose parameters are float32."""
    return parameters * FLOAT32_BYTES * (2 + STATES[optimizer])


def require_memory(config: RunConfig, workload: Workload, device: torch.device, sharded: bool) -> None:
    """Raise ModeUnavailable if there is no room for the model, with how much is missing and what helps. sharded:
    whether ranks share its weights.
    """
    count: Callable[[], int] | None = getattr(workload, "parameters", None)
    room = room_on(device, config.world_size // config.nodes)
    if room is None or count is None:
        return
    parts = 1
    if sharded:
        parts = config.tensor_parallel if config.parallel == "ddp" else config.world_size
    refuse_too_large(config, count(), room, parts)


@dataclass(frozen=True)
class Room:
    """The free bytes that a rank may use. place: where they are free; remedy: what has more."""

    free_bytes: int
    place: str = "of this GPU are free"
    remedy: str = "--parallel fsdp on several GPUs, one with more memory"


def room_on(device: torch.device, ranks: int) -> Room | None:
    """Return the room that each rank of this machine has, or None if it is unknown. ranks: of this machine."""
    if device.type == "cuda":
        return Room(torch.cuda.mem_get_info(device)[0])
    free = free_host_bytes()
    if free is None:
        return None
    processes = "one process" if ranks == 1 else f"each of {ranks} processes"
    return Room(free // ranks, f"are free for {processes} of this host", "a host with more memory, a GPU")


def refuse_too_large(config: RunConfig, parameters: int, room: Room, parts: int = 1) -> None:
    """Raise ModeUnavailable if what is kept exceeds a rank's room. parts: the number of ranks that share it, each of
    which keeps its part, and sees the complete model in the gate before.
    """
    needed, gate = kept_bytes(parameters, config.optimizer) // parts, 2 * parameters * FLOAT32_BYTES
    free, billions, helps = room.free_bytes, f"{parameters / 1e9:.2f}e9 parameters", room.remedy
    why = f"for weights, gradients and the state of {config.optimizer} ({billions})"
    if parts > 1:
        what = "weights and gradients of the whole model, which the gate looks at" if gate >= needed else "its part"
        why = f"a rank for {what} ({billions}, {parts} ranks)"
        helps, needed = "more memory a rank, more ranks on other hosts,", max(gate, needed)
    elif kept_bytes(parameters, "sgd") <= free:
        helps = f"--optimizer sgd, {helps}"
    if needed <= free:
        return
    raise ModeUnavailable(
        f"{config.workload} needs {_gib(needed)} {why}, and {_gib(free)} {room.place}: "
        f"{_gib(needed - free)} are missing",
        f"No batch size helps: use {helps} or a smaller workload",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
