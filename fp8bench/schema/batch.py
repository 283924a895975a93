"""How a batch size was found with `--batch-size auto`: which sizes were tried, and what each of them took."""

from typing import Literal

from pydantic import Field, PositiveInt

from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen

AUTO = "auto"
"""The value of --batch-size that leaves it to the memory of the machine."""

Fit = Literal["fits", "no headroom", "executed otherwise", "too large"]
"""What came of a size, one verdict over all ranks.

fits: it ran, and left the headroom free
no headroom: it ran, and took some of it
executed otherwise: it ran, but not as smaller ones did (its CUDA graph had no memory left), so that it is another step
too large: a rank ran out of memory
"""


class BatchTry(Frozen):
    """One size. peak_bytes: of the fullest rank; null where it ran out of memory. run_id: of the record that it is of;
    null: it was tried in processes of its own.
    """

    batch_size: PositiveInt
    fit: Fit
    peak_bytes: int | None = None
    execution: Variant | None = None
    run_id: str | None = None


class BatchSearch(Frozen):
    """The sizes in the order in which they were tried, those that were known from records first. The result is the
    largest that fits.
    """

    memory_bytes: int | None = Field(
        description="free before the search, of the GPU with the least, or a rank's share of the host's; null: unknown"
    )
    headroom: float = Field(ge=0, lt=1, description="the share of it that stays free")
    tries: tuple[BatchTry, ...]

    @property
    def limit_bytes(self) -> int | None:
        """The most that a rank may take."""
        return None if self.memory_bytes is None else int(self.memory_bytes * (1 - self.headroom))
