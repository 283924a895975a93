"""What memory is free, and the refusal of what needs more.

An allocation that fails tells what it could not have, and not what the whole would have needed; and on a host it does
not fail at all, but the process is killed. So a need is added up first, and held against what is free.
"""

import torch

from fp8bench.machine.host import free_host_bytes
from fp8bench.schema.errors import UsageError


def free_bytes(device: torch.device) -> int | None:
    """On the GPU, or on the host without swapping; None where it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_bytes()


def require(what: str, needed: int, free: int | None, place: str, remedy: str) -> None:
    """needed, free: bytes; None refuses nothing. what, place: in words. Raises UsageError where it does not fit."""
    if free is not None and needed > free:
        raise UsageError(f"{what} needs {_gib(needed)}, and {_gib(free)} are free on {place}", remedy)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
