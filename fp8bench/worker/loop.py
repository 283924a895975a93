"""The training loop that is timed: nothing in it but the next batch, the launch of a step (see
`execution`), and the calls of the clock.

Losses are kept on the device and read after the last step, since reading one would wait for the device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from fp8bench.worker.clock import Clock, StepTimes
from fp8bench.worker.execution.step import Launch
from fp8bench.workloads.protocol import Batch


@dataclass(frozen=True)
class LoopResult:
    """times and losses: one a step."""

    times: StepTimes
    losses: list[float]


@dataclass(frozen=True)
class Training:
    """What the loop needs. batches goes on where the last loop left it."""

    launch: Launch
    batches: Iterator[Batch]
    device: torch.device


def train(training: Training, steps: int, clock: Clock, before_step: Callable[[int], None]) -> LoopResult:
    """Train for `steps` steps.

    before_step: called with the step's number; what it costs falls into the step before.
    """
    losses = torch.full((steps,), torch.nan, device=training.device)
    for step in range(steps):
        before_step(step)
        clock.start_step()
        batch = next(training.batches)
        clock.data_ready()
        losses[step].copy_(training.launch(batch, clock))
    times = clock.finish()
    return LoopResult(times, losses.tolist())
