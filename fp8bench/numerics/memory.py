"""The memory that a GEMM needs, and the refusal of what does not fit: a failed allocation reports its own size, and on
a host the process is killed.
"""

import torch

from fp8bench.machine.host import free_host_bytes
from fp8bench.schema.config import Device
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import Shape
from fp8bench.schema.machine import gib

FP8_BYTES, BF16_BYTES, FLOAT_BYTES, EXACT_BYTES = 1, 2, 4, 8
FEWEST_SETS, MOST_SETS = 2, 16
CHECKED_ELEMENTS = 2**26
"""Elements of the output that are checked at a time. Checking all at once would need more memory than the GEMM."""

HEADROOM = 1.15
"""For the allocator's rounding and cuBLAS's workspace."""


def device_for(device: Device) -> torch.device:
    """Return the CPU or the first visible GPU. Raises ModeUnavailable if torch cannot use it."""
    if device == "cuda" and not torch.cuda.is_available():
        remedy = "Install a torch for CUDA, or hide the GPU with CUDA_VISIBLE_DEVICES= to use the CPU"
        raise ModeUnavailable("this machine has a GPU, and torch cannot use it", remedy)
    return torch.device(device)


def require(what: str, needed: int, device: torch.device, remedy: str) -> None:
    """Raise UsageError if the need exceeds what is free on the GPU, or on the host without swapping. what: in words.
    needed: bytes.
    """
    on_gpu = device.type == "cuda"
    free = int(torch.cuda.mem_get_info(device)[0]) if on_gpu else free_host_bytes()
    if free is not None and needed > free:
        where = torch.cuda.get_device_name(device) if on_gpu else "this host"
        raise UsageError(f"{what} needs {gib(needed)}, and {gib(free)} are free on {where}", remedy)


def operand_sets(shape: Shape, flush_bytes: int | None) -> int:
    """Return how many sets of fp8 operands are larger than the flush, within FEWEST_SETS and MOST_SETS."""
    one = FP8_BYTES * (shape.m * shape.k + shape.n * shape.k)
    return min(MOST_SETS, max(FEWEST_SETS, -(-(flush_bytes or 0) // one)))


def checked_rows(shape: Shape) -> int:
    return max(1, min(shape.m, CHECKED_ELEMENTS // max(shape.n, shape.k)))


def gemm_bytes(shape: Shape, flush_bytes: int | None) -> int:
    """Return the most bytes a shape needs: operands in bf16 and fp8, two outputs, a cast's float32 or exact sums."""
    elements = shape.m * shape.k + shape.n * shape.k
    sets = operand_sets(shape, flush_bytes)
    kept = sets * elements * (BF16_BYTES + FP8_BYTES) + 2 * shape.m * shape.n * BF16_BYTES
    casting = 3 * FLOAT_BYTES * max(shape.m, shape.n) * shape.k
    rows = checked_rows(shape)
    checking = EXACT_BYTES * (shape.n * shape.k + rows * shape.k + 3 * rows * shape.n)
    return int(HEADROOM * (kept + max(casting, checking))) + (flush_bytes or 0)
