"""A workload of tokens that reads a text instead of random tokens: the same model, loss and work with other batches.

A target is the byte after its input. The complete text is on the device, so a batch is one look-up there, and no loader
delays a step.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fp8bench.workloads.protocol import Batch, Workload
from fp8bench.workloads.text import Text, held_out_starts, starts


class OnText:
    """A `Workload` on a text. workload: one with VOCABULARY kinds of tokens, which provides all but the batches."""

    def __init__(self, workload: Workload, text: Text, world_size: int, seed: int) -> None:
        self._workload, self._text, self._world_size, self._seed = workload, text, world_size, seed
        self._length = int(workload.sizes()["sequence_length"])
        self._on: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def batches(self, batch_size: int, rank: int, device: torch.device) -> Iterator[Batch]:
        """Return batches from the beginning of the seed's order."""
        # Copied once for all batches, because a text may be large.
        if self._on is None or self._on.device != device:
            self._on = on_device(self._text.train, device)
        tokens = self._on
        order = starts(len(self._text.train), self._length, batch_size, rank, self._world_size, self._seed)
        return (batch_at(tokens, begin, self._length) for begin in order)

    def validation(self, batch_size: int, batches: int, rank: int, device: torch.device) -> list[Batch]:
        """Return this rank's share of the held-out part: this number of batches, or fewer if the text is short."""
        part = self._text.validation
        tokens = on_device(part, device)
        begin = held_out_starts(len(part), self._length, batch_size, batches, rank, self._world_size)
        whole = range(0, len(begin) - batch_size + 1, batch_size)
        return [batch_at(tokens, begin[first : first + batch_size], self._length) for first in whole]


def on_device(part: bytes, device: torch.device) -> Tensor:
    """Return the bytes as a tensor, [bytes] uint8."""
    return torch.frombuffer(bytearray(part), dtype=torch.uint8).to(device)


def batch_at(tokens: Tensor, begin: list[int], length: int) -> Batch:
    """Return the sequences that begin there: [len(begin), length] int64 each. Does not wait for the device."""
    first = torch.tensor(begin)
    if tokens.is_cuda:
        first = first.pin_memory().to(tokens.device, non_blocking=True)
    found = tokens[first[:, None] + torch.arange(length + 1, device=tokens.device)].long()
    return Batch(found[:, :-1].contiguous(), found[:, 1:].contiguous())
