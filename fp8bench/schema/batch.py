"""How a batch size was found with `--batch-size auto`: which sizes were tried, and the outcome of each."""

from typing import Literal

from pydantic import Field, PositiveInt

from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, optional

AUTO = "auto"  # the value of --batch-size that fits the batch to the memory of the machine

Fit = Literal["fits", "no headroom", "executed otherwise", "too large"]
"""The outcome of trying a size, over all ranks.

fits: it ran and left the headroom free
no headroom: it ran and used part of the headroom
executed otherwise: it ran, but not as smaller sizes did (no memory was left for its CUDA graph), so its step differs
too large: a rank ran out of memory
"""


class BatchTry(Frozen):
    """One size that was tried."""

    batch_size: PositiveInt
    fit: Fit
    peak_bytes: int | None = optional("of the rank that used the most; null: it ran out of memory")
    execution: Variant | None = None
    run_id: str | None = optional("of the record that the result is from; null: tried in separate processes")


class BatchSearch(Frozen):
    """The sizes in the order of the trials, those known from records first. The result is the largest that fits."""

    memory_bytes: int | None = Field(
        description="free before the search, of the GPU with the least, or a rank's share of the host's; null: unknown"
    )
    headroom: float = Field(ge=0, lt=1, description="the share of it that stays free")
    tries: tuple[BatchTry, ...]

    @property
    def limit_bytes(self) -> int | None:
        """The most memory that a rank may use; None if the free memory is unknown."""
        return None if self.memory_bytes is None else int(self.memory_bytes * (1 - self.headroom))
