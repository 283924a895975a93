"""Collectives as measured: what was requested, and the times of each operation at each size. A size is the bytes of the
complete array, and bandwidths are defined as in nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
"""

from itertools import product
from typing import Literal, get_args

from pydantic import Field, PositiveFloat, PositiveInt

from fp8bench.schema.config import Device
from fp8bench.schema.files import Frozen, optional
from fp8bench.schema.gemm import padded

Operation = Literal["all-reduce", "all-gather", "reduce-scatter"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

Dtype = Literal["bf16", "fp32"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
ITEM_BYTES: dict[Dtype, int] = {"bf16": 2, "fp32": 4}

Backend = Literal["nccl", "gloo"]
BACKENDS: dict[Device, Backend] = {"cuda": "nccl", "cpu": "gloo"}


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return the bytes that travel over each rank's link with any algorithm, over the array's. ranks: at least 2."""
    if ranks < 2:
        raise ValueError("a collective has at least two ranks")
    return (2 if operation == "all-reduce" else 1) * (ranks - 1) / ranks


def bus_gb_s(operation: Operation, size_bytes: float, time_s: float, ranks: int) -> float:
    """Return the bus bandwidth, S / t times the factor of the operation, in GB/s (1e9 bytes)."""
    return size_bytes / time_s / 1e9 * bus_factor(operation, ranks)


class CollectivesConfig(Frozen):
    device: Device
    world_size: int = Field(ge=2)
    nodes: PositiveInt = Field(default=1, description="all have the same number of ranks")
    operations: tuple[Operation, ...]
    dtypes: tuple[Dtype, ...]
    sizes_bytes: tuple[PositiveInt, ...] = Field(description="requested; each is rounded up to whole elements a rank")
    rounds: PositiveInt
    seconds: PositiveFloat = Field(description="how long each timing lasts in each round")

    @property
    def cases(self) -> tuple["Case", ...]:
        return tuple(
            Case(operation=operation, dtype=dtype, size_bytes=padded(size, ITEM_BYTES[dtype] * self.world_size))
            for operation, dtype, size in product(self.operations, self.dtypes, self.sizes_bytes)
        )


class Case(Frozen):
    """One operation in one dtype. size_bytes: of the complete array, which divides evenly over the ranks."""

    operation: Operation
    dtype: Dtype
    size_bytes: PositiveInt

    @property
    def elements(self) -> int:
        return self.size_bytes // ITEM_BYTES[self.dtype]


class RankTimes(Frozen):
    wrong: int = Field(ge=0, description="elements that were not the exact result, counted before any timing")
    rounds_s: tuple[tuple[PositiveFloat, ...], ...] = Field(default=(), description="s; none: any rank was wrong")


class CollectiveTiming(Case):
    """The timing of one case. The time of a repetition is that of the rank that took longest over its round."""

    status: Literal["ok", "invalid"] = "ok"
    reason: str | None = optional("of another status than ok")
    time_s: PositiveFloat | None = optional("mean over the rounds of their means")
    time_ci_s: tuple[float, float] | None = optional("95 % over the rounds, of this group of processes only")
    rounds_s: tuple[tuple[PositiveFloat, ...], ...] = Field(default=(), description="every repetition, round by round")

    def model_post_init(self, _context: object) -> None:
        if (self.status == "ok") != (self.time_s is not None) or (self.status == "ok") != (self.reason is None):
            raise ValueError("a timing with status ok has a time, and one with another status a reason instead")
