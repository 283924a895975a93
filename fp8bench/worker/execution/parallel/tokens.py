"""A head that returns the loss itself, on ranks that share a sequence: each takes its own tokens and the complete head.

The loss is the mean over the ranks'. Each rank computes a summand of the head's gradient; the summands are added up in
the backward pass, before anything else uses them.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from fp8bench.modes.te_parallel import mean_over


class LossOfTokens(ParallelStyle):
    """For a module called with hidden [batch, this rank's tokens, width] and targets [batch, tokens]."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        rank, size = device_mesh.get_local_rank(), device_mesh.size()
        plain = module.forward

        def forward(hidden: Tensor, targets: Tensor) -> Tensor:
            own = targets.chunk(size, 1)[rank]
            kept = module._parameters.pop("weight")
            module.weight = _Summed.apply(kept, group)
            try:
                loss: Tensor = mean_over(plain(hidden, own), group)
            finally:
                del module.weight
                module.register_parameter("weight", kept)
            return loss

        module.forward = forward
        return module


class _Summed(torch.autograd.Function):
    """The identity in the forward pass; in the backward pass, the sum over the group."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
