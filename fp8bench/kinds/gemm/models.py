"""What `fp8bench gemm` asks, and its record."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fp8bench.kinds.kind import Request, of_run
from fp8bench.schema.config import Device
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.gemm import Ceiling, Precision, ProductTimings, Shape, StepBound
from fp8bench.schema.option import Option
from fp8bench.schema.record import RecordHead


@dataclass(frozen=True)
class GemmRequest(Request):
    """Words of `fp8bench gemm`."""

    workload: Annotated[
        str | None,
        Option(
            "GEMMs of its linear layers, forward and backward",
            if_unset="vit-huge; on a CPU vit-micro",
            metavar="NAME",
            complete="workloads",
        ),
    ] = None
    batch_size: Annotated[str | None, of_run("batch_size", "Samples a step")] = None
    shapes: Annotated[
        tuple[str, ...], Option("Rows, output features, inner dimension. Repeatable", metavar="M,N,K")
    ] = ()
    sweep: Annotated[bool, Option("Square GEMMs, from small to large")] = False
    precisions: Annotated[
        tuple[str, ...],
        Option(
            "bf16, fp8-tensorwise, fp8-rowwise, or either with -fast for fast accumulation. Repeatable",
            if_unset="all",
            metavar="NAME",
        ),
    ] = ()
    compiled_casts: Annotated[bool, Option("Time casts by torch.compile too, which takes a while")] = False
    rounds: Annotated[
        str | None, Option("Of each GEMM without casts, in balanced order", if_unset="3; on a CPU 1", metavar="R")
    ] = None
    seconds: Annotated[
        str | None, Option("For each timing, at least 20 times a round", if_unset="0.1", metavar="S")
    ] = None
    allow_busy: Annotated[bool, of_run("allow_busy")] = False
    seed: Annotated[str | None, of_run("seed", "Seed of the operands")] = None


class GemmConfig(Frozen):
    """What was asked for, every number resolved."""

    device: Device
    workload: str | None
    batch_size: PositiveInt | None
    shapes: tuple[Shape, ...] = Field(description="given by --shape")
    sweep: bool
    precisions: tuple[Precision, ...]
    compiled_casts: bool
    rounds: PositiveInt = Field(default=1, description="of each GEMM without casts; with casts there is one")
    seconds: PositiveFloat = Field(description="time for each timing, at least 20 repetitions a round")
    seed: int = Field(ge=0)


class GemmRecord(RecordHead):
    """One call of `fp8bench gemm`: one process, one device. Another process may be faster or slower as a whole."""

    kind: Literal["gemm"] = "gemm"
    config: GemmConfig
    products: tuple[ProductTimings, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    bounds: tuple[StepBound, ...] = ()
    scaled_mm: str | None = Field(default=None, description="which function made the fp8 products; null: none ran")
    flush_bytes: int | None = Field(default=None, description="written before each repetition; null: caches stay warm")
    warnings: tuple[str, ...] = ()
