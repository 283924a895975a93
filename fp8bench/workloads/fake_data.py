"""Random samples in a data set of a million: images, sequences of tokens with all words equally likely, or what has the
form of a user's examples. Values are normal and not zero, because matrix units draw less power on zeros and run faster.
Sample i is the same in every process and every run with the same seed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from fp8bench.lifeline import leave_with
from fp8bench.schema.config import PREFETCH_FACTOR, DataSource
from fp8bench.workloads.protocol import Batch

LENGTH, STRIDE = 1_000_000, 1024
"""The number of samples; and how many ranks there can be at most."""


class Drawn(Dataset[Any]):
    """A data set. draw: makes a sample, (inputs, labels), of its index and a generator that follows from the seed: one
    of the functions below, with its first arguments.
    """

    def __init__(self, draw: Callable[[int, torch.Generator], tuple[Tensor, Any]], seed: int) -> None:
        self.draw, self.seed = draw, seed

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        if not 0 <= index < LENGTH:
            raise IndexError(index)
        return self.draw(index, torch.Generator().manual_seed(self.seed * LENGTH + index))


def draw_image(image_px: int, classes: int, index: int, by: torch.Generator) -> tuple[Tensor, int]:
    """Draw ([3, image_px, image_px] float32, label)."""
    return torch.randn(3, image_px, image_px, generator=by), index % classes


def draw_tokens(sequence: int, words: int, _index: int, by: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw (tokens, the tokens that follow each), both [sequence] int64."""
    text = torch.randint(words, (sequence + 1,), generator=by)
    return text[:-1], text[1:]


def draw_example(
    shape: torch.Size, words: int | None, labels: Tensor, classes: int | None, index: int, by: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw a sample in the form of an example. words: None for normal inputs. classes: None for the labels in turn."""
    inputs = torch.randn(shape, generator=by) if words is None else torch.randint(words, shape, generator=by)
    label = labels[index % len(labels)]
    return inputs, label if classes is None else torch.randint(classes, label.shape, generator=by)


def indices(batch_size: int, rank: int) -> Iterator[int]:
    """Yield a rank's indices without end: every STRIDE-th run of batch_size, beginning with the rank's."""
    for run in count(rank, STRIDE):
        yield from ((run * batch_size + i) % LENGTH for i in range(batch_size))


class LoaderBatches(Iterator[Batch]):
    """Endless batches from a DataLoader, copied to the device; for a GPU from pinned memory, without waiting. Its
    processes start with the first batch, and end with `close`. prefetched: how many batches may be waiting.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, rank: int, device: torch.device, workers: int) -> None:
        self.prefetched = workers * PREFETCH_FACTOR
        self._device = device
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=indices(batch_size, rank),
            num_workers=workers,
            prefetch_factor=PREFETCH_FACTOR if workers else None,
            pin_memory=device.type == "cuda",
            worker_init_fn=partial(_leave_with_rank, os.getpid()),
        )
        self._batches: Iterator[list[Tensor]] | None = None

    def __next__(self) -> Batch:
        if self._batches is None:
            self._batches = iter(self._loader)
        inputs, targets = next(self._batches)
        return Batch(inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True))

    def close(self) -> None:
        """End the loader's processes, which end with the iterator that started them."""
        self._batches = None


def _leave_with_rank(rank: int, _worker: int) -> None:
    # By themselves torch's processes look for their rank only every 5 s and between batches.
    leave_with(rank)


def endless_batches(
    dataset: Drawn, batch_size: int, rank: int, device: torch.device, data: DataSource, workers: int
) -> Iterator[Batch]:
    """Return endless batches from a DataLoader, or one that stays on the device: the step's cost without a loader."""
    if data != "device":
        return LoaderBatches(dataset, batch_size, rank, device, workers)
    inputs, targets = default_collate([dataset[rank * batch_size + i] for i in range(batch_size)])
    return repeat(Batch(inputs.to(device), targets.to(device)))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw weights on the device itself: on a CPU 632 M take 10 s or more. GPUs of one kind draw the same."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        yield
