"""What a user asks of a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import OptimizerName, Variant, split_variant, suffix
from fp8bench.schema.instance import Purchase

DEFAULT_REFERENCE_MODE = "baseline-bf16"


@dataclass(frozen=True)
class Reference:
    """Which row the others are held against. mode: with or without its recipe; execution: None takes any."""

    instance: str
    mode: str
    execution: Variant | None = None
    asked_for: bool = True

    @property
    def label(self) -> str:
        """As on the command line."""
        return f"{self.instance}:{self.mode}{suffix(self.execution)}"


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


def parse_reference(text: str | None, instances: Sequence[str]) -> Reference:
    """`INSTANCE:MODE[:RECIPE][/VARIANT]`; None is the first instance's baseline-bf16. Raises UsageError."""
    if text is None:
        return Reference(instances[0], DEFAULT_REFERENCE_MODE, asked_for=False)
    label, execution = split_variant(text, f"--reference {text!r}")
    instance, _, mode = label.partition(":")
    if not instance or not mode:
        raise UsageError(
            f"--reference {text!r} is not INSTANCE:MODE", "Say, for example, --reference p4d:baseline-bf16"
        )
    return Reference(instance, mode, execution)
