"""One training step, and its launch from Python.

The step is written once: what is timed, what a CUDA graph captures and what the plainly eager reference does are this
function. Nothing in it waits for the device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fp8bench.modes.protocol import Mode
from fp8bench.workloads.protocol import Batch, Workload


@dataclass(frozen=True)
class Parts:
    """What a step needs. model: as it is trained, wrapped and joined; wrapped: not joined; plain: the same weights with
    neither.
    """

    model: nn.Module
    wrapped: nn.Module
    plain: nn.Module
    optimizer: Optimizer
    mode: Mode
    workload: Workload
    device: torch.device


class Marks(Protocol):
    """Told as a step comes to the end of a pass."""

    def forward_done(self) -> None: ...

    def backward_done(self) -> None: ...


@dataclass(frozen=True)
class Split:
    """Seconds of each pass, by the device's clock, of steps of their own."""

    forward_s: list[float]
    backward_s: list[float]
    optimizer_s: list[float]


class Launch(Protocol):
    """How a step comes to run: everything that the loop knows of execution."""

    def __call__(self, batch: Batch, marks: Marks) -> Tensor:
        """Queue one step; the loss, a scalar on the device, holds until the next one. marks: told of the passes where
        Python sees them.
        """

    def split(self, batches: Iterator[Batch], steps: int) -> Split | None:
        """What each pass takes, from `steps` steps more, none of them timed; None: the clock saw the passes."""


class NoMarks:
    """Nobody is told."""

    def forward_done(self) -> None:
        """Nothing."""

    def backward_done(self) -> None:
        """Nothing."""


NO_MARKS = NoMarks()


def bf16_autocast(device: torch.device) -> torch.autocast:
    """The autocast that every mode trains and is proved under."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def forward(parts: Parts, model: nn.Module, batch: Batch) -> Tensor:
    """The loss under the mode's precision."""
    with bf16_autocast(parts.device), parts.mode.forward_context():
        return parts.workload.loss(model, batch)


def step(parts: Parts, batch: Batch, marks: Marks) -> Tensor:
    """Forward, backward with what joins the ranks, optimizer. Returns the loss, detached."""
    parts.optimizer.zero_grad(set_to_none=True)
    loss = forward(parts, parts.model, batch)
    marks.forward_done()
    loss.backward()
    marks.backward_done()
    parts.optimizer.step()
    return loss.detach()


class PythonLaunch:
    """Each step launched kernel by kernel, as most training scripts do."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __call__(self, batch: Batch, marks: Marks) -> Tensor:
        """See `Launch`."""
        return step(self._parts, batch, marks)

    def split(self, batches: Iterator[Batch], steps: int) -> None:
        """The clock saw them."""
