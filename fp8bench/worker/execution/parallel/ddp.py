"""DistributedDataParallel: every rank holds the complete model, and gradients are averaged while backward runs.

A single rank shares with no other and is not wrapped, because DDP would still copy every gradient into its buckets.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench.modes.protocol import Mode
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ParallelEvidence

TIMED_STEPS = 10
"""DDP times its first steps, and later each hundredth, with events that it waits for (torch's Reducer and Logger,
`kDDPRuntimeLoggingSampleRate`): such a step cannot be captured.
"""

TIMED_EVERY = 100


class DDP:
    """Joins ranks with DDP (see the module). reason: why it was chosen, for the record."""

    sharded = False
    divides_early = False
    capture_refusal = None
    whole_refusal = None

    def __init__(self, reason: str = "auto: every GPU holds the whole model", alone: bool = False) -> None:
        """alone: whether a single rank is wrapped too, to measure what that costs."""
        self._reason = reason
        self._alone = alone

    @property
    def word(self) -> Join:
        """The word for the record: `none` for a single rank that is not wrapped."""
        several = dist.is_initialized() and dist.get_world_size() > 1
        return "ddp" if several or self._alone else "none"

    def divide(self, model: nn.Module) -> None:
        """Do nothing: layers are not divided."""

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """Return a replica whose gradients are the mean over all ranks when backward ends."""
        if self.word == "none":
            return model
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """Return a new replica. DDP removes its hooks from the weights with its reducer, which its logger holds."""
        if isinstance(joined, DistributedDataParallel):
            del joined.logger
            del joined.reducer
        return self.join(wrapped, mode, device)

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Let the gradients of all but the last micro-batch add up locally."""
        return joined.no_sync() if isinstance(joined, DistributedDataParallel) and not last else nullcontext()

    def group(self) -> None:
        """Return None: every rank has samples of its own."""

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """Return all ranks."""
        return dist.group.WORLD

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor, which is complete already."""
        return tensor

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """Return all of the tensor."""
        return full

    def elements(self, name: str, weight: Tensor) -> int:
        """Return the weight's number of elements."""
        return weight.numel()

    def evidence(self) -> ParallelEvidence:
        """Return the evidence: nothing is cast or sharded."""
        return ParallelEvidence(reason=self._reason)


def steps_before_capture(taken: int) -> int:
    """Return how many more steps must run before one can be captured, given the number that have run."""
    steps = max(taken, TIMED_STEPS + 1)
    # DDP looks at its count before and after it counts a step.
    while steps % TIMED_EVERY in (0, TIMED_EVERY - 1):
        steps += 1
    return steps - taken
