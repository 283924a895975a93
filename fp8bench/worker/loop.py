"""The training loop that is timed: nothing in it but training, and the calls of the clock.

Losses are kept on the device and read after the last step, since reading one would wait for the device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from fp8bench.modes.protocol import Mode
from fp8bench.worker.clock import Clock, StepTimes
from fp8bench.workloads.protocol import Batch, Workload


@dataclass(frozen=True)
class LoopResult:
    """times and losses: one a step, warm-up steps first."""

    times: StepTimes
    losses: list[float]


@dataclass(frozen=True)
class Training:
    """What a step needs. batches goes on where the last loop left it."""

    model: nn.Module
    optimizer: Optimizer
    mode: Mode
    workload: Workload
    batches: Iterator[Batch]
    device: torch.device


def bf16_autocast(device: torch.device) -> torch.autocast:
    """The autocast that every mode trains and is proved under."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def sgd(model: nn.Module) -> Optimizer:
    """The articles' optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


OPTIMIZER = "SGD(lr=0.001, momentum=0.9)"
"""The optimizer's name in the fingerprint."""


def train(training: Training, steps: int, clock: Clock, before_step: Callable[[int], None]) -> LoopResult:
    """Train for `steps` steps.

    before_step: called with the step's number; what it costs falls into the step before.
    """
    device, mode, optimizer = training.device, training.mode, training.optimizer
    losses = torch.full((steps,), torch.nan, device=device)
    for step in range(steps):
        before_step(step)
        clock.start_step()
        batch = next(training.batches)
        clock.data_ready()
        optimizer.zero_grad(set_to_none=True)
        with bf16_autocast(device), mode.forward_context():
            loss = training.workload.loss(training.model, batch)
        clock.forward_done()
        loss.backward()
        clock.backward_done()
        optimizer.step()
        losses[step].copy_(loss.detach())
    times = clock.finish()
    return LoopResult(times, losses.tolist())
