"""Random samples that look like a data set, a million of them: images, float32 and normally distributed, or sequences
of tokens, any word as likely as another.

Normal values and not zeros, because matrix units draw less power on zeros and run faster. Sample i is the same in every
process and every run with the same seed. An image's label is i modulo the number of classes; a token's target is the
token that follows it.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

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


class FakeTokens(Dataset[tuple[Tensor, Tensor]]):
    """Items are (tokens, the tokens that follow each), both [sequence] int64."""

    def __init__(self, sequence: int, words: int, seed: int, length: int = LENGTH) -> None:
        self.sequence = sequence
        self.words = words
        self.seed = seed
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(self.seed * self.length + index)
        text = torch.randint(self.words, (self.sequence + 1,), generator=generator)
        return text[:-1], text[1:]


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
        dataset: Dataset[Any],
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
        inputs, targets = next(self._batches)
        return Batch(inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True))

    def close(self) -> None:
        """End the loader's processes now: they end with the iterator that started them."""
        self._batches = None


def _leave_with_rank(rank: int, _worker: int) -> None:
    """torch's loader processes check every 5 s whether the rank is gone, and only between batches."""
    leave_with(rank)


def device_batches(dataset: Dataset[Any], batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
    """One batch that stays on the device, over and over: what the step costs without a loader."""
    inputs, targets = default_collate([dataset[rank * batch_size + i] for i in range(batch_size)])
    batch = Batch(inputs.to(device), targets.to(device))
    while True:
        yield batch
