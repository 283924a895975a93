"""How much memory a product takes, known before any of it is asked for."""

from collections.abc import Iterable

from fp8bench.numerics.free_memory import require
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


def require_memory(shapes: Iterable[Shape], flush_bytes: int | None, free: int | None, device: str) -> None:
    """free: bytes; None refuses nothing. device: in words. Raises UsageError where the largest shape does not fit."""
    largest = max(shapes, key=lambda shape: needed_bytes(shape, flush_bytes))
    remedy = "Give a smaller --shape or --batch-size, or end what else uses the memory"
    require(f"the product {largest}", needed_bytes(largest, flush_bytes), free, device, remedy)
