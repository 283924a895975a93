"""What memory is free, and the refusal of what needs more.

An allocation that fails tells what it could not have, and not what the whole would have needed; and on a host it does
not fail at all, but the process is killed. So a need is added up first, and held against what is free.
"""

from pathlib import Path

import torch

from fp8bench.schema.errors import UsageError

MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """On the GPU, or on the host without swapping; None where it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    fields = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(fields[0][1]) * 1024 if fields else None


def require(what: str, needed: int, free: int | None, place: str, remedy: str) -> None:
    """needed, free: bytes; None refuses nothing. what, place: in words. Raises UsageError where it does not fit."""
    if free is not None and needed > free:
        raise UsageError(f"{what} needs {_gib(needed)}, and {_gib(free)} are free on {place}", remedy)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
