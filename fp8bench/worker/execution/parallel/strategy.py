"""What a way to join ranks is."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fp8bench.modes.protocol import Mode
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ParallelEvidence

DATA, TENSOR = "data", "tensor"


@dataclass(frozen=True)
class Grid:
    """Where a rank stands: `tensor` consecutive ranks share every layer and see the same samples; such groups have
    samples of their own.
    """

    rank: int
    world_size: int
    tensor: int = 1

    @property
    def groups(self) -> int:
        """Groups with samples of their own."""
        return self.world_size // self.tensor

    @property
    def group(self) -> int:
        """Which of them this rank is of."""
        return self.rank // self.tensor

    def mesh(self, device: torch.device) -> DeviceMesh:
        """[groups, tensor] ranks. Every rank calls it."""
        return init_device_mesh(device.type, (self.groups, self.tensor), mesh_dim_names=(DATA, TENSOR))


def grid(tensor: int = 1) -> Grid:
    """Of this process's rank."""
    return Grid(dist.get_rank(), dist.get_world_size(), tensor)


class Strategy(Protocol):
    """The contract; every rank calls each method at the same time.

    sharded: weights are parts after `join` or `divide`. divides_early: before the parity gate. capture_refusal: why its
    steps cannot be captured in a CUDA graph; None: as far as is known, they can. whole_refusal: the same of
    torch.compile for the whole model.
    """

    @property
    def word(self) -> Join: ...

    @property
    def sharded(self) -> bool: ...

    @property
    def divides_early(self) -> bool: ...

    @property
    def capture_refusal(self) -> str | None: ...

    @property
    def whole_refusal(self) -> str | None: ...

    def divide(self, model: nn.Module) -> None:
        """Share layers among ranks, in place, before anything is wrapped. Raises ModeUnavailable for a model that
        cannot be.
        """

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """The model as it is trained, whose gradients are those of all ranks' samples when backward ends."""

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """The same afresh, after a step that stopped half-way. joined: of no more use; wrapped: what it was made of."""

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of one micro-batch of several: gradients are shared with the last one."""

    def group(self) -> dist.ProcessGroup | None:
        """Ranks that have different samples and the same layers; None: all ranks."""

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """Ranks that hold the same part of this weight, all of it where it is not sharded; None: no other does."""

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Of a weight, a buffer, or a tensor of the optimizer for a weight, by its name: all of it, with rows as the
        plain model has them. Every rank calls it where weights are sharded.
        """

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """What this rank holds of such a tensor of the plain model. like: the weight of that name, as it is sharded."""

    def evidence(self) -> ParallelEvidence:
        """For the record."""
