"""Decides how many ranks a request starts: on this machine, or under torchrun, which has started them. Pure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8bench.schema.errors import ModeUnavailable, UsageError

if TYPE_CHECKING:
    from fp8bench.launch.nodes.place import Elastic
    from fp8bench.machine.gpus import Machine

CPU_RANKS = 2
"""Ranks on a CPU unless another number is requested."""

MOST_RANKS_A_CORE = 4
WHERE_TO_LOOK = "look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"


@dataclass(frozen=True)
class Ranks:
    """Ranks of a run. all: on all nodes. per_node: on each of them."""

    all: int
    per_node: int
    nodes: int = 1


def ranks_for(requested: int | None, machine: "Machine", elastic: "Elastic | None" = None) -> Ranks:
    """Return the ranks: as torchrun made them, as requested (--gpus), or one for each GPU and CPU_RANKS on a CPU.

    Raises UsageError if --gpus disagrees with torchrun or starts more processes than the cores can carry, and
    ModeUnavailable if this machine has too few GPUs.
    """
    if elastic is None:
        return _here(requested, machine)
    if requested not in (None, elastic.world_size):
        raise UsageError(
            f"--gpus {requested} disagrees with torchrun, which made {elastic.world_size} processes", "Omit --gpus"
        )
    there = len(machine.gpus)
    if machine.has_gpu and elastic.local_world_size > there:
        raise ModeUnavailable(
            f"torchrun made {elastic.local_world_size} processes here, and this machine shows {_gpus(there)}",
            f"Lower --nproc-per-node, or {WHERE_TO_LOOK}",
        )
    return Ranks(elastic.world_size, elastic.local_world_size, elastic.nodes)


def _here(requested: int | None, machine: "Machine") -> Ranks:
    there = len(machine.gpus)
    ranks = requested or there or CPU_RANKS
    if there and ranks > there:
        raise ModeUnavailable(
            f"--gpus {requested} is requested, and this machine shows {_gpus(there)}",
            f"Lower --gpus, or {WHERE_TO_LOOK}",
        )
    most = max(CPU_RANKS, MOST_RANKS_A_CORE * machine.cpu_count)
    if not there and ranks > most:
        raise UsageError(
            f"--gpus {requested} would start as many processes on {machine.cpu_count} CPU cores",
            f"Give at most {most} here, {MOST_RANKS_A_CORE} for every core",
        )
    return Ranks(ranks, ranks)


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
