"""Which of Transformer Engine's modules run in fp8 if a recipe's `layers=` excludes some.

A layer is named as in the plain model, and each module contains one layer of it or several: qkv and its norm are one
module, fc1, fc2 and their norm another. A module is in fp8 as a whole or not at all. An excluded module keeps its place
and its weights, and runs forward and backward in bf16, under its own disabled autocast.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fp8bench.modes.layers import LayerChoice
from fp8bench.schema.errors import ModeUnavailable

_QKV = (("attn.qkv",), ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
_PROJ = (("attn.proj",), ("self_attn.o_proj",))
_MLP = (("mlp.fc1", "mlp.fc2"), ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))

STANDS_FOR: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("layer.self_attention.layernorm_qkv", _QKV),
    ("layer.self_attention.proj", _PROJ),
    ("layer.layernorm_mlp", _MLP),
    ("qkv", _QKV),
    ("proj", _PROJ),
    ("mlp", _MLP),
)
"""The end of a module's name within its block, and the plain layers that it may contain, in timm and in Llama."""


@dataclass(frozen=True)
class Placed:
    """A module of Transformer Engine, and the plain layers that it contains; empty if unknown."""

    module: nn.Module
    layers: tuple[str, ...]


def placed(modules: Mapping[str, nn.Module], plain: Collection[str]) -> list[Placed]:
    """Match modules, by their names in the converted model, to plain layers. plain: the names of all linear layers."""
    return [Placed(module, _layers(name, plain)) for name, module in modules.items()]


def leave_out(found: list[Placed], choice: LayerChoice, label: str, off: Callable[[], Any]) -> list[str]:
    """Exclude the modules from fp8 whose layers are not chosen, in place. off: creates a disabled autocast. Returns the
    layers that are excluded.

    Raises ModeUnavailable if no layer is left, or if only some of a module's layers are chosen.
    """
    choice.require_some([layer for one in found for layer in one.layers], label)
    left: list[str] = []
    for one in found:
        if not one.layers:
            raise ModeUnavailable(
                f"{label}: layers={choice.layers} does not know which layer of the model a "
                f"{type(one.module).__name__} stands for",
                "Use layers=all",
            )
        taken = [layer for layer in one.layers if choice.takes(layer)]
        if taken and len(taken) < len(one.layers):
            others = ", ".join(layer for layer in one.layers if layer not in taken)
            raise ModeUnavailable(
                f"{label}: layers={choice.layers} takes {', '.join(taken)} and not {others}, and Transformer Engine "
                f"has them in one {type(one.module).__name__}",
                "Choose all of them or none, as layers=mlp does; --te-attention sdpa has smaller modules in Llama",
            )
        if not taken:
            _switch_off(one.module, off)
            left.extend(one.layers)
    return left


def _layers(name: str, plain: Collection[str]) -> tuple[str, ...]:
    if name in plain:
        return (name,)
    for ending, alternatives in STANDS_FOR:
        block, dot, rest = name.rpartition(f".{ending}")
        if dot and not rest:
            for layers in alternatives:
                full = tuple(f"{block}.{layer}" for layer in layers)
                if set(full) <= set(plain):
                    return full
    return ()


def _switch_off(module: nn.Module, off: Callable[[], Any]) -> None:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with off():
            return inner(*args, **kwargs)

    # Transformer Engine keeps its modules out of compiled graphs, and this wrapper does the same.
    module.forward = torch.compiler.disable(forward)
