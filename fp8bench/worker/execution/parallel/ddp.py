"""DistributedDataParallel: every rank holds the complete model, and gradients are averaged while backward runs.

A single rank shares with no other and is not wrapped, because DDP would still copy every gradient into its buckets.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench.modes.protocol import Mode
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.parallel.strategy import Strategy

TIMED_STEPS = 10
"""DDP times its first steps, and later each hundredth, with events that it waits for (torch's Reducer and Logger,
`kDDPRuntimeLoggingSampleRate`): such a step cannot be captured.
"""

TIMED_EVERY = 100


class DDP(Strategy):
    """Joins ranks with DDP (see the module). reason: why it was chosen, for the record."""

    def __init__(self, reason: str = "auto: every GPU holds the whole model", alone: bool = False) -> None:
        """alone: whether a single rank is wrapped too, to measure what that costs."""
        self._reason = reason
        self._alone = alone

    @property
    def word(self) -> Join:
        several = dist.is_initialized() and dist.get_world_size() > 1
        return "ddp" if several or self._alone else "none"

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        if self.word == "none":
            return model
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        if isinstance(joined, DistributedDataParallel):
            del joined.logger
            del joined.reducer
        return self.join(wrapped, mode, device)

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        return joined.no_sync() if isinstance(joined, DistributedDataParallel) and not last else nullcontext()

    def evidence(self) -> ParallelEvidence:
        return ParallelEvidence(reason=self._reason)


def steps_before_capture(taken: int) -> int:
    """Return how many more steps must run before one can be captured, given the number that have run."""
    steps = max(taken, TIMED_STEPS + 1)
    # DDP looks at its count before and after it counts a step.
    while steps % TIMED_EVERY in (0, TIMED_EVERY - 1):
        steps += 1
    return steps - taken
