"""Transformer Engine layer by layer: te.Linear for a linear layer, te.LayerNorm for a layer norm, with their weights.

This is for models whose blocks have no equivalent in Transformer Engine, and for those in which attention must remain
torch's. A linear layer is swapped if fp8 can take it, by the rule of every fp8 mode (`modes.torchao.convertible`), so
that modes differ in how they compute and not in what they convert. A layer whose class is not exactly a plain layer's
is unchanged, because a subclass may compute something else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fp8bench.modes.te_block import copy_weight, find_timm_blocks, odd_parts
from fp8bench.modes.torchao import convertible, linear_layers, why_none
from fp8bench.schema.errors import ModeUnavailable

_LINEARS = {("torch.nn.modules.linear", "Linear"), ("timm.layers.linear", "Linear")}
_NORMS = {("torch.nn.modules.normalization", "LayerNorm"), ("timm.layers.norm", "LayerNorm")}
"""By module and class name, so that timm is not imported for another kind of model. timm's layers equal torch's."""


@dataclass(frozen=True)
class Swaps:
    """What is replaced in a model, by dotted names. blocks: complete timm Blocks. linears, norms: layers outside of
    blocks. why: why blocks are not replaced as a whole; None if they are, or if there are none.
    """

    blocks: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    why: str | None = None

    def evidence(self) -> dict[str, Any]:
        """Return the fields for a record. Empty if complete blocks are replaced and no other layers."""
        if not self.linears and not self.norms:
            return {}
        swapped = {"te_blocks": len(self.blocks), "te_linears": len(self.linears), "te_norms": len(self.norms)}
        return swapped | ({"te_blocks_refused": self.why} if self.why else {})


def plan_swaps(model: nn.Module) -> Swaps:
    """Plan to replace complete blocks if all of them can be converted, otherwise single layers. Raises ModeUnavailable
    if neither is possible, with a layer and the reason.
    """
    blocks = find_timm_blocks(model)
    odd = next(((name, parts) for name, block in blocks if (parts := odd_parts(block))), None)
    whole = () if odd else tuple(name for name, _ in blocks)
    why = None if odd is None else f"{odd[0]} uses {', '.join(odd[1])}"
    inside = tuple(f"{block}." for block in whole)
    outside = [(name, layer) for name, layer in model.named_modules() if not f"{name}.".startswith(inside)]
    linears = tuple(name for name, layer in outside if _is_one_of(layer, _LINEARS) and convertible(layer, name))
    if not whole and not linears:
        why = why_none(model, lambda layer: _is_one_of(layer, _LINEARS))
        raise ModeUnavailable(
            f"Transformer Engine can take none of the model's layers: {why}",
            "Use a model whose linear layers have widths that are multiples of 16, or baseline modes",
        )
    # Around complete blocks the model is unchanged, except for layers that are worth an fp8 GEMM.
    norms = () if whole else tuple(name for name, layer in outside if _is_one_of(layer, _NORMS) and _affine(layer))
    return Swaps(whole, linears, norms, why)


def swap_linears(te: Any, layer: nn.Module) -> None:
    """Swap all of a module's linear layers, in place."""
    swap_layers(te, layer, list(linear_layers(layer)))


def swap_layers(te: Any, model: nn.Module, names: Iterable[str]) -> None:
    """Swap the linear layers and layer norms of these names, in place and one at a time, so that memory never holds two
    copies of all weights.
    """
    for name in names:
        plain = model.get_submodule(name)
        made = te_norm(te, plain) if isinstance(plain, nn.LayerNorm) else te_linear(te, plain)
        model.set_submodule(name, made.train(plain.training))


def te_linear(te: Any, plain: Any) -> nn.Module:
    """Return a te.Linear with the layer's weight and bias."""
    weight, biased = plain.weight, plain.bias is not None
    sizes = (plain.in_features, plain.out_features)
    made: nn.Module = te.Linear(*sizes, bias=biased, params_dtype=weight.dtype, device=weight.device)
    copy_weight(made.weight, weight)
    if biased:
        copy_weight(made.bias, plain.bias)
    return made


def te_norm(te: Any, plain: nn.LayerNorm) -> nn.Module:
    """Return a te.LayerNorm with the layer's epsilon, weight and bias. Under autocast its output is bf16; torch's is
    float32, which the next layer casts.
    """
    weight = plain.weight
    made: nn.Module = te.LayerNorm(
        plain.normalized_shape[0], eps=plain.eps, params_dtype=weight.dtype, device=weight.device
    )
    copy_weight(made.weight, weight)
    copy_weight(made.bias, plain.bias)
    return made


def _is_one_of(layer: nn.Module, kinds: set[tuple[str, str]]) -> bool:
    return (type(layer).__module__, type(layer).__name__) in kinds


def _affine(norm: Any) -> bool:
    """Return whether the norm has one axis, a weight and a bias, as te.LayerNorm does."""
    return len(norm.normalized_shape) == 1 and norm.weight is not None and norm.bias is not None
