"""How ranks share their gradients: DistributedDataParallel; and the same mean by hand, for the reference."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DDP_TIMED_STEPS = 10
"""DDP times its first steps, and later each hundredth, with events that it waits for (torch's Reducer and Logger,
`kDDPRuntimeLoggingSampleRate`): such a step cannot be captured.
"""

DDP_TIMED_EVERY = 100


def join(model: nn.Module, device: torch.device) -> nn.Module:
    """A replica whose gradients are the mean over all ranks as soon as backward ends."""
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


def part(model: nn.Module) -> None:
    """Undo `join` for good: DDP takes its hooks off the weights when its reducer goes, and its logger holds that."""
    del model.logger
    del model.reducer


def average_gradients(model: nn.Module) -> None:
    """What `join` does to the gradients, by hand: the mean over all ranks."""
    for weight in model.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


def steps_before_capture(taken: int) -> int:
    """How many steps more are to be run before one can be captured, given those that have been."""
    steps = max(taken, DDP_TIMED_STEPS + 1)
    # It looks at its count before and after it counts a step.
    while steps % DDP_TIMED_EVERY in (0, DDP_TIMED_EVERY - 1):
        steps += 1
    return steps - taken
