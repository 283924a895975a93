"""How ranks share their gradients: DistributedDataParallel; and the same mean by hand, for the reference.

A single rank has nobody to share with, and is not wrapped: DDP would copy every gradient into its buckets all the same.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench.schema.execution import Join

DDP_TIMED_STEPS = 10
"""DDP times its first steps, and later each hundredth, with events that it waits for (torch's Reducer and Logger,
`kDDPRuntimeLoggingSampleRate`): such a step cannot be captured.
"""

DDP_TIMED_EVERY = 100


def join(model: nn.Module, device: torch.device) -> nn.Module:
    """A replica whose gradients are the mean over all ranks when backward ends. Every rank of the group calls it."""
    if dist.get_world_size() == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


def how_joined(model: nn.Module) -> Join:
    """What `join` made of it, in a word."""
    return "ddp" if isinstance(model, DistributedDataParallel) else "none"


def part(model: nn.Module) -> None:
    """Undo `join` for good: DDP takes its hooks off the weights when its reducer goes, and its logger holds that."""
    if isinstance(model, DistributedDataParallel):
        del model.logger
        del model.reducer


def average_gradients(model: nn.Module) -> None:
    """What `join` does to the gradients, by hand: the mean over all ranks."""
    world_size = dist.get_world_size()
    for weight in model.parameters():
        if weight.grad is not None and world_size > 1:
            dist.all_reduce(weight.grad)
            weight.grad /= world_size


def steps_before_capture(taken: int) -> int:
    """How many steps more are to be run before one can be captured, given those that have been."""
    steps = max(taken, DDP_TIMED_STEPS + 1)
    # It looks at its count before and after it counts a step.
    while steps % DDP_TIMED_EVERY in (0, DDP_TIMED_EVERY - 1):
        steps += 1
    return steps - taken
