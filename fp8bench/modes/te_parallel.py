"""Transformer Engine's own tensor and sequence parallel: the layers of a model rebuilt with `tp_group`,
`set_parallel_mode` and `sequence_parallel`, each rank with its part of the weights.

A layer's queries, keys, values and first MLP layer are shared by rows, whole heads of them; its projection and second
MLP layer by columns. Between them each rank has a part of the sequence: Transformer Engine gathers it before the one
and scatters sums after the other, in kernels of its own, and takes the sequence as the first dimension for it
(`attn_input_format="sbhd"`). So what goes into the first layer is scattered, and what comes out of the last one
gathered, or used as it is.

What every rank has all of (norms, biases added after the scattering) sees a part of the sequence on each, so that each
computes a summand of its gradient; they are added up as they come, before anything accumulates them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8bench.schema.errors import ModeUnavailable

Group = Any
"""torch's process group."""


@dataclass(frozen=True)
class Share:
    """What a rank has of a weight. dim: along which it is cut into equal parts; None: every rank has all of it. order:
    where its rows are rearranged before, which one of the plain weight each is.
    """

    dim: int | None = None
    order: Tensor | None = None

    def part(self, full: Tensor, rank: int, size: int) -> Tensor:
        """What rank `rank` of `size` has."""
        if self.order is not None:
            full = full[self.order.to(full.device)]
        return full if self.dim is None else full.chunk(size, self.dim)[rank]

    def whole(self, part: Tensor, group: Group) -> Tensor:
        """The plain weight, of the parts that the ranks have. Every rank calls it."""
        if self.dim is None:
            return part
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        full = torch.cat(parts, self.dim)
        return full if self.order is None else full[torch.argsort(self.order.to(full.device))]


WHOLE = Share()


def rows_together(sections: tuple[int, ...], size: int) -> Tensor:
    """Rows of a weight of several sections (queries, keys, values; gate and up), in an order in which each of `size`
    equal parts has its part of every section.
    """
    starts = [sum(sections[:place]) for place in range(len(sections))]
    parts = [
        torch.arange(start + rank * rows // size, start + (rank + 1) * rows // size)
        for rank in range(size)
        for start, rows in zip(starts, sections, strict=True)
    ]
    return torch.cat(parts)


def shares_of_layer(qkv: tuple[int, int, int], fc1: tuple[int, ...], fused_qkv: bool, size: int) -> dict[str, Share]:
    """By the names that weights have in a te.TransformerLayer. qkv, fc1: rows of each section. fused_qkv: whether
    queries, keys and values are one weight.
    """
    attention, mlp = "self_attention.layernorm_qkv", "layernorm_mlp"
    together = Share(0, rows_together(qkv, size))
    of_qkv = (
        {f"{attention}.{what}": together for what in ("weight", "bias")}
        if fused_qkv
        else {
            f"{attention}.{role}_{what}": Share(0) for role in ("query", "key", "value") for what in ("weight", "bias")
        }
    )
    of_fc1 = Share(0, rows_together(fc1, size)) if len(fc1) > 1 else Share(0)
    return {
        **of_qkv,
        "self_attention.proj.weight": Share(1),
        f"{mlp}.fc1_weight": of_fc1,
        f"{mlp}.fc1_bias": of_fc1,
        f"{mlp}.fc2_weight": Share(1),
    }


@torch.no_grad()
def take_parts(layer: nn.Module, whole: nn.Module, shares: dict[str, Share], group: Group) -> None:
    """Give the weights of `layer` this rank's part of those of the layer that it takes the place of, and have the
    gradients of what every rank has all of added up.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    weights = dict(whole.named_parameters())
    for name, weight in layer.named_parameters():
        share = shares.get(name, WHOLE)
        part = share.part(weights[name], rank, size)
        if part.shape != weight.shape:
            raise ModeUnavailable(
                f"this Transformer Engine gives a rank {list(weight.shape)} of {name}, and not {list(part.shape)}",
                "Use the Transformer Engine version in constraints.txt",
            )
        weight.copy_(part)
        if share.dim is None:
            weight.register_hook(summed_over(group))


def summed_over(group: Group) -> Callable[[Tensor], Tensor]:
    """A hook of a weight: its gradient is the sum over the group."""

    def hook(gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    return hook


def require_divisible(what: str, number: int, size: int) -> None:
    """Raises ModeUnavailable."""
    if number % size:
        raise ModeUnavailable(
            f"--tensor-parallel {size} does not divide the model's {number} {what}",
            "Use a --tensor-parallel that divides them, or omit it",
        )


def scattered(x: Tensor, group: Group) -> Tensor:
    """[batch, sequence, width], the same on every rank, to this rank's [sequence / size, batch, width]."""
    require_divisible("tokens of a sequence", x.shape[1], dist.get_world_size(group))
    part: Tensor = _Scatter.apply(x.transpose(0, 1), group)
    return part


def gathered(part: Tensor, group: Group) -> Tensor:
    """The other way, for what every rank computes the same of."""
    whole: Tensor = _Gather.apply(part, group)
    return whole.transpose(0, 1)


def mean_over(loss: Tensor, group: Group) -> Tensor:
    """Of the group's losses, of which each rank's is a summand."""
    mean: Tensor = _Mean.apply(loss, group)
    return mean


def _own(x: Tensor, group: Group) -> Tensor:
    return x.chunk(dist.get_world_size(group), 0)[dist.get_rank(group)].contiguous()


def _all(part: Tensor, group: Group) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, 0)


class _Scatter(torch.autograd.Function):
    """This rank's part of the first dimension; backward all parts of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _own(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all(gradients[0], ctx.group), None


class _Gather(torch.autograd.Function):
    """All parts; backward this rank's part of the gradient, which is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _all(part, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _own(gradients[0], ctx.group), None


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, group: Group) -> Tensor:
        ctx.size = dist.get_world_size(group)
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        mean: Tensor = total / ctx.size
        return mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.size, None
