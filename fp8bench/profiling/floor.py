"""How far each part of a step is above what its GPU reaches at best, from the ceilings that `run --floor` measured.

GEMMs and attention are bounded by the same work run by itself, what only moves data by the fewest bytes that it must
move: a norm reads and writes its elements once, and twice and a read more in backward; a cast to fp8 is a part of what
made its values, and writes them in both layouts; weights are read as they are kept. Copies and idle time need not be.
Kernels that do several of these are one part in a profile: what a floor is compared with are GEMMs of all types
together, and all that moves data together.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import FLOAT32_BYTES, OptimizerName
from fp8bench.schema.rank import GEMMS, Category, Ceilings, Profile

MOVING: tuple[Category, ...] = ("cast", "elementwise", "copy")
TENSORS: Mapping[OptimizerName, int] = {"sgd": 5, "adam": 7, "adamw": 7, "none": 0}
"""What an optimizer reads and writes of the size of a weight: weight, gradient, momentum; of Adam two moments."""

OF_16_BITS, FP8_LAYOUTS, NORM_PASSES = 2, 2, 5
"""Bytes; copies of an operand in fp8; tensors that a norm reads and writes, forward and backward."""


class Floor(NamedTuple):
    """Seconds a step of each part. spread: by how much the ceilings may be off, as a share."""

    parts: Mapping[Category, float]
    spread: float

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    def beaten(self, profile: Profile) -> Iterator[str]:
        """Yield what a profile beats by more than the spread, which cannot be."""
        for name, parts in (("GEMMs", GEMMS), ("attention", ("attention",)), ("what moves data", MOVING)):
            floor_s, took_s = sum(self.parts.get(part, 0.0) for part in parts), profile.seconds(*parts)
            if 0 < took_s * (1 + self.spread) < floor_s:
                least = f"less than the floor of {floor_s * 1e3:.1f}"
                yield f"{name} took {took_s * 1e3:.1f} ms, {least}: please report it"


def floor_of(ceilings: Ceilings, config: RunConfig, fp8: bool, sharded: bool) -> Floor | None:
    """Return the floor of a step; None without units for fp8, and where ranks share layers or compute in 32 bits.

    sharded: every rank keeps and updates its part of the weights alone.
    """
    products_s = ceilings.gemms_fp8_s if fp8 else ceilings.gemms_16_s
    if products_s is None or config.tensor_parallel > 1 or config.mode.endswith(("-fp32", "-tf32")):
        return None
    width, ranks = FLOAT32_BYTES if config.weight_dtype == "float32" else OF_16_BITS, config.world_size
    operands = FP8_LAYOUTS * (ceilings.activations + ceilings.converted) if fp8 else 0
    weights = 0 if fp8 or width == OF_16_BITS else OF_16_BITS * ceilings.converted
    read = width * ceilings.converted if operands or weights else 0
    updated = TENSORS[config.optimizer or "none"] * width * ceilings.parameters / (ranks if sharded else 1)
    moved: dict[Category, float] = {
        "cast": operands + weights + read,
        "elementwise": NORM_PASSES * OF_16_BITS * ceilings.normed,
        "optimizer": updated,
    }
    parts: dict[Category, float] = {
        "gemm_fp8": products_s if fp8 else 0.0,
        "gemm_bf16": ceilings.gemms_rest_s + (0.0 if fp8 else products_s),
        "attention": ceilings.attention_s,
        **{name: bytes_moved / ceilings.bytes_per_s for name, bytes_moved in moved.items()},
    }
    if ceilings.link_bytes_per_s is not None:
        # An all-reduce of 16-bit gradients, which all else may hide.
        sent = 2 * (ranks - 1) / ranks * OF_16_BITS * ceilings.parameters
        parts["nccl"] = max(0.0, sent / ceilings.link_bytes_per_s - sum(parts.values()))
    return Floor(parts, ceilings.spread)
