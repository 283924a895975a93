"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged while backward runs.

A single rank shares with none, and is not wrapped: DDP would copy every gradient into its buckets all the same.
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
    """See the module. reason: why it was chosen, for the record."""

    sharded = False
    divides_early = False
    capture_refusal = None
    whole_refusal = None

    def __init__(self, reason: str = "auto: every GPU holds the whole model", alone: bool = False) -> None:
        """alone: whether a single rank is wrapped too, for what that costs."""
        self._reason = reason
        self._alone = alone

    @property
    def word(self) -> Join:
        """`none` for a single rank that is not wrapped."""
        several = dist.is_initialized() and dist.get_world_size() > 1
        return "ddp" if several or self._alone else "none"

    def divide(self, model: nn.Module) -> None:
        """Nothing: layers are whole."""

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """A replica whose gradients are the mean over all ranks when backward ends."""
        if self.word == "none":
            return model
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """A new replica; DDP takes its hooks off the weights when its reducer goes, and its logger holds that."""
        if isinstance(joined, DistributedDataParallel):
            del joined.logger
            del joined.reducer
        return self.join(wrapped, mode, device)

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Gradients of all but the last micro-batch add up where they are."""
        return joined.no_sync() if isinstance(joined, DistributedDataParallel) and not last else nullcontext()

    def group(self) -> None:
        """Every rank has samples of its own."""

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """All ranks."""
        return dist.group.WORLD

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """It is."""
        return tensor

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """All of it."""
        return full

    def evidence(self) -> ParallelEvidence:
        """Nothing is cast, and nothing sharded."""
        return ParallelEvidence(reason=self._reason)


def steps_before_capture(taken: int) -> int:
    """How many steps more are to be run before one can be captured, given those that have been."""
    steps = max(taken, TIMED_STEPS + 1)
    # It looks at its count before and after it counts a step.
    while steps % TIMED_EVERY in (0, TIMED_EVERY - 1):
        steps += 1
    return steps - taken
