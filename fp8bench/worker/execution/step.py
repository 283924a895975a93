"""One training step, its launch from Python, and everything that it changes.

The step is written once: what is timed, what a CUDA graph captures and what the plainly eager reference does are this
function. Nothing in it waits for the device.

What a step changes is weights, buffers, the optimizer's state, what the mode keeps (fp8's scales), and the GPU's
generator. It is copied (`copies` says where to) and restored in place, since a CUDA graph and DDP's buckets hold
addresses.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fp8bench.modes.protocol import Mode
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker.execution.checkpointing import Checkpoints
from fp8bench.worker.execution.copies import copied
from fp8bench.worker.execution.parallel.ddp import DDP
from fp8bench.worker.execution.parallel.shards import local, reduced
from fp8bench.worker.execution.parallel.strategy import Strategy
from fp8bench.workloads.protocol import Batch, Workload


@dataclass(frozen=True)
class Parts:
    """What a step needs. model: as it is trained, wrapped and joined; wrapped: not joined; plain: the same weights with
    neither, or where they are sharded, the model itself. strategy: how it was joined; accumulation: micro-batches a
    step.
    """

    model: nn.Module
    wrapped: nn.Module
    plain: nn.Module
    optimizer: Optimizer
    mode: Mode
    workload: Workload
    device: torch.device
    strategy: Strategy = field(default_factory=DDP)
    accumulation: int = 1
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    @property
    def plainly_eager(self) -> bool:
        """Whether a step is what a training script does first: each rank the whole model, one batch, nothing twice."""
        return self.accumulation == 1 and not self.strategy.sharded and not self.checkpoints.blocks


class Marks(Protocol):
    """Called as a step comes to the end of a pass, of each micro-batch in turn."""

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
        """Queue one step; the loss, a scalar on the device, holds until the next one. marks: called
        at the ends of passes where Python sees them.
        """

    def split(self, batches: Iterator[Batch], steps: int) -> Split | None:
        """What each pass takes, from `steps` steps more, none of them timed; None: the clock saw the passes."""


class NoMarks:
    """For steps whose passes nobody times."""

    def forward_done(self) -> None:
        pass

    def backward_done(self) -> None:
        pass


NO_MARKS = NoMarks()


def bf16_autocast(device: torch.device) -> torch.autocast:
    """The autocast that every mode trains and is proved under."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def forward(parts: Parts, model: nn.Module, batch: Batch, first: bool = True) -> Tensor:
    """first: whether the batch is the first micro-batch of its step."""
    announce(parts.mode, first)
    with bf16_autocast(parts.device), parts.mode.forward_context():
        return parts.workload.loss(model, batch)


def announce(mode: Mode, first: bool) -> None:
    """Tell a mode that wants to know whether the forward pass to come is the first one of a step."""
    listen = getattr(mode, "micro_batch", None)
    if listen is not None:
        listen(first)


def step(parts: Parts, batch: Batch, marks: Marks) -> Tensor:
    """Forward, backward with what joins the ranks, for each micro-batch; optimizer. Returns the mean loss, detached.

    Gradients are those of the whole batch: each micro-batch's loss is divided by their number.
    """
    parts.optimizer.zero_grad(set_to_none=True)
    pieces = micro_batches(batch, parts.accumulation)
    losses = [_micro_step(parts, piece, marks, first=piece is pieces[0], last=piece is pieces[-1]) for piece in pieces]
    update(parts)
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _micro_step(parts: Parts, piece: Batch, marks: Marks, first: bool, last: bool) -> Tensor:
    alone: AbstractContextManager[object] = nullcontext()
    with alone if parts.accumulation == 1 else parts.strategy.sharing(parts.model, last):
        loss = forward(parts, parts.model, piece, first)
        if parts.accumulation > 1:
            loss = loss / parts.accumulation
        marks.forward_done()
        backward(parts, loss)
        marks.backward_done()
    return loss.detach()


def backward(parts: Parts, loss: Tensor) -> None:
    """Of the loss, or of what the mode makes of it."""
    scaling = getattr(parts.mode, "loss_scaling", None)
    (loss if scaling is None else scaling.scaled(loss)).backward()


def update(parts: Parts) -> None:
    """The optimizer's step, and what the mode makes of sharded weights after it."""
    if parts.strategy.sharded:
        for weight in trained(parts).values():
            if weight.grad is not None:
                weight.grad = reduced(weight.grad, weight)
    scaling = getattr(parts.mode, "loss_scaling", None)
    if scaling is None:
        parts.optimizer.step()
    else:
        scaling.step(parts.optimizer)
    after_update(parts)


def after_update(parts: Parts) -> None:
    """What the mode makes of sharded weights whenever they have changed. Every rank calls it."""
    after = getattr(parts.mode, "after_update", None)
    if after is not None and parts.strategy.sharded:
        after(parts.model)


def micro_batches(batch: Batch, number: int) -> list[Batch]:
    """The batch in equal pieces, which are views. Raises MeasurementInvalid where it cannot be divided."""
    size = len(batch.inputs)
    if number == 1:
        return [batch]
    if size % number:
        raise MeasurementInvalid(
            f"a batch of {size} samples is not divided by {number} micro-batches (--grad-accumulation)",
            "Use a workload whose batches are as large as requested",
        )
    return [Batch(*pieces) for pieces in zip(*(tensor.chunk(number) for tensor in batch), strict=True)]


class PythonLaunch:
    """Each step launched kernel by kernel, as most training scripts do."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __call__(self, batch: Batch, marks: Marks) -> Tensor:
        return step(self._parts, batch, marks)

    def split(self, batches: Iterator[Batch], steps: int) -> None:
        """The clock saw them."""


def trained(parts: Parts) -> dict[str, nn.Parameter]:
    """The trained parameters by name, in a fixed order; sharded ones as they are."""
    return {name: weight for name, weight in parts.plain.named_parameters() if weight.requires_grad}


def weights(parts: Parts) -> list[Tensor]:
    """What this rank holds of the trained weights, in a fixed order."""
    return [local(weight) for weight in trained(parts).values()]


def gradients(parts: Parts) -> list[Tensor]:
    """Of those weights; zero where none came. Every rank calls it where weights are sharded."""
    return list(map(_gradient, trained(parts).values()))


def _gradient(weight: nn.Parameter) -> Tensor:
    """Where GEMMs accumulate it in float32 beside the weight, that."""
    if weight.grad is not None:
        return local(reduced(weight.grad, weight))
    beside: Tensor | None = getattr(weight, "main_grad", None)
    return torch.zeros_like(local(weight)) if beside is None else beside.detach()


def scales(parts: Parts) -> list[Tensor]:
    """What the mode keeps from step to step, in a fixed order; see `Mode.step_state`."""
    state = getattr(parts.mode, "step_state", None)
    return list(state(parts.plain)) if state is not None else []


def others(parts: Parts) -> list[Tensor]:
    """Buffers and the optimizer's state, in a fixed order."""
    states = parts.optimizer.state.values()
    held = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    return [local(tensor) for tensor in (*parts.plain.buffers(), *held)]


@dataclass(frozen=True)
class Snapshot:
    """The state of training at one moment. others: buffers and the optimizer's state."""

    weights: list[Tensor]
    others: list[Tensor]
    scales: list[Tensor]
    optimizer_had: frozenset[Tensor]
    generator: Tensor | None

    @classmethod
    def of(cls, parts: Parts, place: torch.device) -> "Snapshot":
        """place: where the copies are kept."""
        return cls(
            weights=copied(weights(parts), place),
            others=copied(others(parts), place),
            scales=copied(scales(parts), place),
            optimizer_had=frozenset(parts.optimizer.state),
            generator=torch.cuda.get_rng_state(parts.device) if parts.device.type == "cuda" else None,
        )

    def restore(self, parts: Parts) -> None:
        """Put it back. What the optimizer has made since of weights that it had no state of is dropped."""
        for weight in [weight for weight in parts.optimizer.state if weight not in self.optimizer_had]:
            del parts.optimizer.state[weight]
        now = [*weights(parts), *others(parts), *scales(parts)]
        with torch.no_grad():
            for tensor, then in zip(now, [*self.weights, *self.others, *self.scales], strict=True):
                tensor.copy_(then)
        if self.generator is not None:
            torch.cuda.set_rng_state(self.generator, parts.device)
        after_update(parts)
        parts.optimizer.zero_grad(set_to_none=True)
