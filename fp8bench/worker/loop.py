"""The training loop that is timed: nothing in it but training, and three calls of the clock.

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


def bf16_autocast(device: torch.device) -> torch.autocast:
    """The autocast that every mode trains and is proved under."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def sgd(model: nn.Module) -> Optimizer:
    """The articles' optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


OPTIMIZER = "SGD(lr=0.001, momentum=0.9)"
"""The optimizer's name in the fingerprint."""


def train(
    model: nn.Module,
    optimizer: Optimizer,
    mode: Mode,
    workload: Workload,
    batches: Iterator[Batch],
    device: torch.device,
    steps: int,
    clock: Clock,
    after_last_step: Callable[[], None],
) -> LoopResult:
    """Train for `steps` steps.

    after_last_step: called when the last step is queued and the device may still be at work.
    """
    losses = torch.full((steps,), torch.nan, device=device)
    for step in range(steps):
        clock.start_step()
        batch = next(batches)
        clock.data_ready()
        optimizer.zero_grad(set_to_none=True)
        with bf16_autocast(device), mode.forward_context():
            loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses[step].copy_(loss.detach())
    after_last_step()
    times = clock.finish()
    return LoopResult(times, losses.tolist())
