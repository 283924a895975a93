"""Transformer Engine's own tensor and sequence parallel: the layers of a model are rebuilt with `tp_group`,
`set_parallel_mode` and `sequence_parallel`, so that each rank has a part of the weights.

Queries, keys, values and the first MLP layer are divided by rows into complete heads; the projection and the second MLP
layer by columns. Between the two each rank has a part of the sequence, which must be the first dimension
(`attn_input_format="sbhd"`): the first layer's input is scattered, and the last one's output gathered, or used so.

Parameters that every rank has in full (norms, biases added after the scattering) see only a part of the sequence on
each rank, which computes a summand of their gradient (`SUMMED`); the sum is up to what joins the ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.modes.te_block import ConvertedLayer
from fp8bench.schema.errors import ModeUnavailable

Group = Any
"""torch's process group."""


@dataclass(frozen=True)
class Share:
    """A rank's share of a weight. dim: the one divided into equal parts; None if every rank has all. order: the plain
    row at each place, before the division. summed: whether each rank computes a summand of the gradient.
    """

    dim: int | None = None
    order: Tensor | None = None
    summed: bool = False

    def part(self, full: Tensor, rank: int, size: int) -> Tensor:
        if self.order is not None:
            full = full[self.order.to(full.device)]
        return full if self.dim is None else full.chunk(size, self.dim)[rank]

    def whole(self, part: Tensor, group: Group) -> Tensor:
        """Return the plain weight from the parts of the ranks. Every rank must call this method."""
        if self.dim is None:
            return part
        full = _all(part, group, self.dim)
        return full if self.order is None else full[torch.argsort(self.order.to(full.device))]


WHOLE, SUMMED = Share(), Share(summed=True)


def rows_together(sections: tuple[int, ...], size: int) -> Tensor:
    """Return an order of the rows of a weight in which each of `size` equal parts has its part of every section."""
    of_sections = (rows.chunk(size) for rows in torch.arange(sum(sections)).split(sections))
    return torch.cat([part for of_rank in zip(*of_sections, strict=True) for part in of_rank])


class SharedLayer(ConvertedLayer):
    """A te.TransformerLayer that ranks can share; divided, it takes this rank's [sequence / size, batch, width]."""

    layer: Any

    def __init__(self, te: Any, names: tuple[str | tuple[str, ...], ...], sizes: dict[str, Any]) -> None:
        super().__init__(names, fused_qkv=sizes["fuse_qkv_params"])
        self.te, self.sizes = te, sizes
        self.group: Group = None
        self.shares: dict[str, Share] = {}

    def made(self, **options: Any) -> Any:
        given = {"attn_input_format": "bshd", **self.sizes, **options}
        return self.te.TransformerLayer(
            **given, self_attn_mask_type="causal", hidden_dropout=0.0, qkv_weight_interleaved=False
        )

    @torch.no_grad()
    def divide(self, group: Group) -> None:
        """Share the layer among the ranks of a group. Raises ModeUnavailable if its sizes cannot be divided."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        divided = self._divided(size)
        own = {"attn_input_format": "sbhd", "set_parallel_mode": True, "sequence_parallel": True, "tp_group": group}
        whole, self.group = self.layer, group
        self.layer = self.made(**own).train(whole.training)
        weights = dict(whole.named_parameters())
        self.shares = {name: divided.get(name, SUMMED) for name in weights}
        for name, weight in self.layer.named_parameters():
            part = self.shares[name].part(weights[name], rank, size)
            if part.shape != weight.shape:
                raise ModeUnavailable(
                    f"this Transformer Engine gives a rank {list(weight.shape)} of {name}, and not {list(part.shape)}",
                    "Use the Transformer Engine version in constraints.txt",
                )
            weight.copy_(part)

    def _divided(self, size: int) -> dict[str, Share]:
        sizes = self.sizes
        heads, ffn = sizes["num_attention_heads"], sizes["ffn_hidden_size"]
        groups, width = sizes.get("num_gqa_groups", heads), sizes.get("kv_channels", sizes["hidden_size"] // heads)
        for what, number in (("query heads", heads), ("key and value heads", groups), ("MLP columns", ffn)):
            require_divisible(what, number, size)
        qkv = Share(0, rows_together((heads * width, groups * width, groups * width), size))
        fc1 = Share(0, rows_together((ffn, ffn) if sizes["activation"] == "swiglu" else (ffn,), size))
        roles = {"": qkv} if sizes["fuse_qkv_params"] else {f"{one}_": Share(0) for one in ("query", "key", "value")}
        return {
            **{f"self_attention.layernorm_qkv.{r}{what}": roles[r] for r in roles for what in ("weight", "bias")},
            "self_attention.proj.weight": Share(1),
            "layernorm_mlp.fc1_weight": fc1,
            "layernorm_mlp.fc1_bias": fc1,
            "layernorm_mlp.fc2_weight": Share(1),
        }


def require_divisible(what: str, number: int, size: int) -> None:
    if number % size:
        raise ModeUnavailable(
            f"--tensor-parallel {size} does not divide the model's {number} {what}",
            "Use a --tensor-parallel that divides them, or omit it",
        )


def scattered(x: Tensor, group: Group) -> Tensor:
    """Turn [batch, sequence, width], the same on every rank, into this rank's [sequence / size, batch, width]."""
    require_divisible("tokens of a sequence", x.shape[1], dist.get_world_size(group))
    part: Tensor = _Exchange.apply(x.transpose(0, 1), group, _own, _all)
    return part


def gathered(part: Tensor, group: Group) -> Tensor:
    """Invert `scattered`, for a result from which every rank computes the same."""
    whole: Tensor = _Exchange.apply(part, group, _all, _own)
    return whole.transpose(0, 1)


def mean_over(loss: Tensor, group: Group) -> Tensor:
    mean: Tensor = _Mean.apply(loss, group)
    return mean


def _own(x: Tensor, group: Group) -> Tensor:
    return x.chunk(dist.get_world_size(group), 0)[dist.get_rank(group)].contiguous()


def _all(part: Tensor, group: Group, dim: int = 0) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim)


class _Exchange(torch.autograd.Function):
    """All parts of the first dimension, or this rank's; backward the other, of a gradient equal on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, there: Callable[..., Tensor], back: Any) -> Tensor:
        ctx.group, ctx.back = group, back
        return there(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(gradients[0], ctx.group), None, None, None


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, group: Group) -> Tensor:
        ctx.size = dist.get_world_size(group)
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        return total / dist.get_world_size(group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.size, None
