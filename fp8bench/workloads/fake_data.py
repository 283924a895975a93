"""Random images that look like a data set: a million of them, float32, normally distributed.

Normal values and not zeros, because matrix units draw less power on zeros and run faster. Image i is the same in every
process and every run with the same seed; its label is i modulo the number of classes.
"""

import os
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from fp8bench.lifeline import leave_with
from fp8bench.workloads.protocol import Batch

LENGTH = 1_000_000

PREFETCH_FACTOR = 2
"""Batches that each process of a loader makes ahead: torch's default, stated, since a run must empty that queue."""


class FakeDataset(Dataset[tuple[Tensor, int]]):
    """Items are ([3, image_px, image_px] float32, label)."""

    def __init__(self, image_px: int, classes: int, seed: int, length: int = LENGTH) -> None:
        self.image_px = image_px
        self.classes = classes
        self.seed = seed
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(self.seed * self.length + index)
        return torch.randn(3, self.image_px, self.image_px, generator=generator), index % self.classes


class EndlessSampler(Sampler[int]):
    """Indices without end: rank r takes every stride-th run of batch_size indices, starting over at the end.

    The stride is larger than any world size, so that ranks never meet inside one pass over a million images.
    """

    def __init__(self, length: int, batch_size: int, rank: int, stride: int = 1024) -> None:
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.stride = stride

    def __iter__(self) -> Iterator[int]:
        first = self.rank * self.batch_size
        while True:
            yield from ((first + i) % self.length for i in range(self.batch_size))
            first += self.stride * self.batch_size


class LoaderBatches:
    """Batches without end from a DataLoader, copied to the device: on a GPU from pinned memory, without a wait.

    prefetched: how many may be waiting, made by the loader's processes ahead of the step that takes them. The processes
    start with the first batch that is taken, and end with `close`.
    """

    def __init__(
        self,
        dataset: Dataset[tuple[Tensor, int]],
        sampler: Sampler[int],
        batch_size: int,
        device: torch.device,
        workers: int,
    ) -> None:
        self.prefetched = workers * PREFETCH_FACTOR
        self._device = device
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=workers,
            prefetch_factor=PREFETCH_FACTOR if workers else None,
            pin_memory=device.type == "cuda",
            persistent_workers=False,
            worker_init_fn=partial(_leave_with_rank, os.getpid()),
        )
        self._batches: Iterator[list[Tensor]] | None = None

    def __iter__(self) -> "LoaderBatches":
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            self._batches = iter(self._loader)
        images, labels = next(self._batches)
        return Batch(images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True))

    def close(self) -> None:
        """End the loader's processes now: they end with the iterator that started them."""
        self._batches = None


def _leave_with_rank(rank: int, _worker: int) -> None:
    """torch's loader processes check every 5 s whether the rank is gone, and only between batches."""
    leave_with(rank)


def device_batches(dataset: FakeDataset, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
    """One batch that stays on the device, over and over: what the step costs without a loader."""
    images, labels = zip(*(dataset[rank * batch_size + i] for i in range(batch_size)), strict=True)
    batch = Batch(torch.stack(images).to(device), torch.tensor(labels).to(device))
    while True:
        yield batch
