"""Which of Transformer Engine's modules run in fp8, where a recipe's `layers=` leaves some out.

A layer is named as in the plain model, and each module stands for one layer of it or for several: qkv and its norm are
one module, fc1 and fc2 with theirs another. A module is in fp8 as a whole or not at all. One that is left out keeps its
place and its weights, and runs under an autocast of its own that is off, forward and backward, in bf16.
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
"""How the name of a module ends, within its block, and the plain layers that it may stand for, of timm and of Llama."""


@dataclass(frozen=True)
class Placed:
    """A module of Transformer Engine's, and the plain layers that it stands for; none: unknown."""

    module: nn.Module
    layers: tuple[str, ...]


def placed(modules: Mapping[str, nn.Module], plain: Collection[str]) -> list[Placed]:
    """modules: by their dotted names in the converted model. plain: names of the plain model's linear layers."""
    return [Placed(module, _layers(name, plain)) for name, module in modules.items()]


def leave_out(found: list[Placed], choice: LayerChoice, label: str, off: Callable[[], Any]) -> list[str]:
    """Take the modules whose layers are not chosen out of fp8, in place. off: makes an autocast that is switched off.
    Returns the layers that are left out.

    Raises ModeUnavailable where nothing is left, and where a module's layers are not all of one choice.
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

    # Transformer Engine keeps its modules out of compiled graphs, and this is one.
    module.forward = torch.compiler.disable(forward)
