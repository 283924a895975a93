"""Decides where to keep copies of what a step changes, for a proof that runs steps again from one start.

They are kept on the GPU if there is room next to the step, because the way to the host and back takes some 20 s for
ViT-Huge in every process (pageable memory, several times over 10 GB), else on the host. A graph's memory is measured
once, at its capture, while the copies exist; what the capture adds to them is added to what there was before them
(`decide`). Timed steps get a new peak.
"""

import sys
from collections.abc import Iterable

import torch
from torch import Tensor

SPARE = 1.25
"""The step's share of the memory, in units of warm-up's peak: plain steps and a graph's pool may need more blocks."""


def copied(tensors: Iterable[Tensor], place: torch.device) -> list[Tensor]:
    return [tensor.detach().to(place, copy=True) for tensor in tensors]


def size(tensors: Iterable[Tensor]) -> int:
    """Return the size in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of the GPU. A host's are not known so well that a proof could depend on them."""
    if device.type != "cuda":
        return sys.maxsize
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def place_for(needed: int, device: torch.device) -> torch.device:
    """Return where copies of `needed` bytes are kept, after warm-up: on `device`, or on the host."""
    host = torch.device("cpu")
    if device.type != "cuda":
        return host
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return device if fits(needed, torch.cuda.max_memory_reserved(device), total - others) else host


def fits(needed: int, peak: int, memory: int) -> bool:
    """Return whether the copies fit. needed: their bytes. peak: of warm-up. memory: of the GPU, for this process."""
    return needed + SPARE * peak <= memory
