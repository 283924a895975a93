"""The interface of a way to join ranks."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fp8bench.modes.protocol import Mode
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ParallelEvidence

DATA, TENSOR = "data", "tensor"


def mesh_of(tensor: int, device: torch.device) -> DeviceMesh:
    """Return a mesh of [groups, tensor] ranks: `tensor` consecutive ranks share every layer and see the same samples;
    each such group has its own samples. Every rank calls this.
    """
    return init_device_mesh(device.type, (dist.get_world_size() // tensor, tensor), mesh_dim_names=(DATA, TENSOR))


class Strategy:
    """The contract, with what holds where every rank has the complete model; every rank calls each method at the same
    time.

    sharded: whether weights are parts after `join` or `divide`. divides_early: whether that is before the parity gate.
    capture_refusal: why its steps cannot be captured in a CUDA graph; None if, as far as known, they can.
    whole_refusal: the same for torch.compile of the complete model.
    """

    sharded = False
    capture_refusal: str | None = None
    whole_refusal: str | None = None

    @property
    def word(self) -> Join:
        raise NotImplementedError

    @property
    def divides_early(self) -> bool:
        return False

    def divide(self, model: nn.Module) -> None:
        """Share layers among ranks, in place, before anything is wrapped. Raises ModeUnavailable for a model for which
        this is impossible.
        """

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """Return the model to train, whose gradients are those of all ranks' samples when backward ends."""
        return model

    def rejoin(self, joined: nn.Module, wrapped: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        """Join again, after a step that stopped half-way. joined: unusable now. wrapped: what it was made from."""
        return joined

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Enclose forward and backward of one of several micro-batches: gradients are shared with the last one."""
        return nullcontext()

    def group(self) -> dist.ProcessGroup | None:
        """Return the ranks with different samples and the same layers; None for all ranks."""
        return None

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """Return the ranks that hold the same part of this weight (or all of it, unsharded); None if no other does."""
        return dist.group.WORLD

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return the complete tensor of a weight, a buffer, or an optimizer's tensor for a weight, by name, with rows
        in the plain model's order. Every rank calls this if weights are sharded.
        """
        return tensor

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """Return what this rank holds of such a tensor of the plain model. like: the sharded weight of that name."""
        return full

    def elements(self, name: str, weight: Tensor) -> int:
        """Return the number of elements of the complete weight. weight: as this rank has it."""
        return weight.numel()

    def evidence(self) -> ParallelEvidence:
        raise NotImplementedError
