"""Copies of what a step changes, for a proof that runs steps again from one start: where they are kept.

On the GPU where there is room beside the step, since the way to the host and back takes some 20 s for ViT-Huge in every
process (pageable memory, several times over 10 GB), and else on the host. A graph's memory is seen in one place, at its
capture, while the copies are alive; they are taken off that peak (`held`), and the timed steps begin with a fresh one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

SPARE = 1.25
"""The step's own share of the memory, in units of warm-up's peak: plain steps and a graph's pool may need other blocks
than warm-up did."""


def copied(tensors: Iterable[Tensor], place: torch.device) -> list[Tensor]:
    return [tensor.detach().to(place, copy=True) for tensor in tensors]


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def held(tensors: Iterable[Tensor], device: torch.device) -> int:
    """Bytes of those that are on `device`; 0 on the host, whose peak is of the process's whole life."""
    return size(tensor for tensor in tensors if tensor.device == device and device.type == "cuda")


def place_for(needed: int, device: torch.device) -> torch.device:
    """Where copies of `needed` bytes are kept, after warm-up: on `device`, or on the host."""
    host = torch.device("cpu")
    if device.type != "cuda":
        return host
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return device if fits(needed, torch.cuda.max_memory_reserved(device), total - others) else host


def fits(needed: int, peak: int, memory: int) -> bool:
    """needed: bytes of the copies; peak: of warm-up; memory: what this process may have of the GPU's."""
    return needed + SPARE * peak <= memory
