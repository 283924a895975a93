"""What a user asks of a comparison."""

from dataclasses import dataclass
from datetime import date

from fp8bench.records.named import Reference
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.instance import Purchase


@dataclass(frozen=True)
class CompareOptions:
    """What the user asked of the comparison. as_of: None prices all rows for today, or, where all are
    published figures, for the day of the newest.
    """

    instances: tuple[str, ...]
    today: date
    reference: Reference
    as_of: date | None = None
    region: str | None = None
    purchase: Purchase = "on_demand"
    workload: str | None = None
    batch_size: int | None = None
    optimizer: OptimizerName | None = None
    every: bool = False
    allow_mismatch: bool = False


def narrowed(workload: str | None, batch_size: int | None, optimizer: str | None = None) -> str:
    """` of vit-huge at batch size 64 with adam`, for a sentence about records; empty where all were asked for."""
    of = f" of {workload}" if workload else ""
    at = f" at batch size {batch_size}" if batch_size else ""
    return f"{of}{at} with {optimizer}" if optimizer else f"{of}{at}"
