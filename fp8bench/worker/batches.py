"""The batches of a rank, counted as steps take them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fp8bench.worker.plugin import require, wrong
from fp8bench.workloads.protocol import Batch, Workload, prefetched


class Batches(Iterator[Batch]):
    """A workload's batches. taken: how many were. size: the samples that were requested of each. unlike: the first that
    had another number, and that number; None if there was none. shape: of the last inputs. first: of the first.
    changed: the first step whose inputs had another shape than the first, and that shape.

    Raises RunFailed where the workload gives no more, or no batch.
    """

    def __init__(self, workload: Workload, batch_size: int, rank: int, device: torch.device) -> None:
        self._workload = workload
        self._made = workload.batches(batch_size, rank, device)
        require(workload, "batches", self._made, "an iterator", Iterator)
        self.taken = 0
        self.size = batch_size
        self.unlike: tuple[int, int] | None = None
        self.shape = torch.Size()
        self.first: torch.Size | None = None
        self.changed: tuple[int, torch.Size] | None = None

    def __next__(self) -> Batch:
        try:
            batch = next(self._made)
        except StopIteration:
            raise self._wrong(
                f"ended at step {self.taken} (warm-up and proofs included)",
                "Let it go on without end: begin anew after the last sample",
            ) from None
        if not isinstance(batch, Batch) or not all(isinstance(part, Tensor) for part in batch):
            raise self._wrong(f"gave a {type(batch).__name__} at step {self.taken}, and not a Batch of two tensors")
        self.shape = batch.inputs.shape
        if self.first is None:
            self.first = self.shape
        if self.shape != self.first and self.changed is None:
            self.changed = self.taken, self.shape
        if len(batch.inputs) != self.size and self.unlike is None:
            self.unlike = self.taken, len(batch.inputs)
        if not len(batch.inputs):
            raise self._wrong(
                f"gave an empty batch at step {self.taken}",
                "Give as many samples as requested: leave an incomplete last batch out (drop_last)",
            )
        self.taken += 1
        return batch

    def _wrong(self, does: str, remedy: str | None = None) -> Exception:
        return wrong(self._workload, "batches", does, remedy)

    @property
    def prefetched(self) -> int:
        """How many batches may be waiting."""
        return prefetched(self._made)

    def close(self) -> None:
        """End what makes the batches, if it can be ended."""
        close = getattr(self._made, "close", None)
        if close is not None:
            close()
