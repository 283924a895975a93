"""How much memory a product takes, known before any of it is asked for.

An allocation that fails tells what it could not have, and not what the whole would have needed; and on a host it does
not fail at all, but the process is killed. So the need is added up first, and held against what is free.
"""

from collections.abc import Iterable
from pathlib import Path

import torch

from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import Shape

BF16_BYTES = 2
FP8_BYTES = 1
FLOAT_BYTES = 4
EXACT_BYTES = 8
MOST_SETS = 16
FEWEST_SETS = 2
CHECKED_ELEMENTS = 2**26
"""Of the output, at a time: a check of the whole at once would need more memory than the product."""

HEADROOM = 1.15
"""For the allocator's rounding and cuBLAS's workspace."""

MEMINFO = Path("/proc/meminfo")


def operand_sets(shape: Shape, flush_bytes: int | None) -> int:
    """How many sets of fp8 operands exceed what the flush writes, within FEWEST_SETS and MOST_SETS."""
    one = FP8_BYTES * (shape.m * shape.k + shape.n * shape.k)
    return min(MOST_SETS, max(FEWEST_SETS, -(-(flush_bytes or 0) // one)))


def checked_rows(shape: Shape) -> int:
    """Rows of the output that are compared at a time."""
    return max(1, min(shape.m, CHECKED_ELEMENTS // max(shape.n, shape.k)))


def needed_bytes(shape: Shape, flush_bytes: int | None) -> int:
    """At the worst moment of measuring the shape: every set of operands in bf16 and fp8, two outputs, and either a
    cast's float32 temporaries (three at a time) or the exact sums that the output is compared with.
    """
    elements = shape.m * shape.k + shape.n * shape.k
    sets = operand_sets(shape, flush_bytes)
    kept = sets * elements * (BF16_BYTES + FP8_BYTES) + 2 * shape.m * shape.n * BF16_BYTES
    casting = 3 * FLOAT_BYTES * max(shape.m, shape.n) * shape.k
    rows = checked_rows(shape)
    checking = EXACT_BYTES * (shape.n * shape.k + rows * shape.k + 3 * rows * shape.n)
    return int(HEADROOM * (kept + max(casting, checking))) + (flush_bytes or 0)


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


def require_memory(shapes: Iterable[Shape], flush_bytes: int | None, free: int | None, device: str) -> None:
    """free: bytes; None refuses nothing. device: in words. Raises UsageError where the largest shape does not fit."""
    largest = max(shapes, key=lambda shape: needed_bytes(shape, flush_bytes))
    needed = needed_bytes(largest, flush_bytes)
    if free is not None and needed > free:
        raise UsageError(
            f"the product {largest} needs {_gib(needed)}, and {_gib(free)} are free on {device}",
            "Give a smaller --shape or --batch-size, or end what else uses the memory",
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
