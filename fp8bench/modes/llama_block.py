"""Reads what a layer of transformers' Llama computes from its modules, and refuses any part that another library could
not reproduce.

A layer is pre-norm: x + o_proj(attention(input_layernorm(x))), then x + down_proj(silu(gate_proj(y)) * up_proj(y)) with
y = post_attention_layernorm(x). Queries and keys are rotated by their position, with the two halves of a head as pairs.
Layers are recognized by class name and module, so that transformers is never imported for another kind of model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fp8bench.schema.errors import ModeUnavailable

Layer = Any
"""transformers' LlamaDecoderLayer. nn.Module does not type its parts."""

_MODULE = "transformers.models.llama.modeling_llama"
_PLAIN_ROTATIONS = ("default", "linear", "llama3")
"""The rotations whose frequencies depend on the configuration only."""


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer. groups: of query heads; each group has one key and value head. attention_dropout: a rate."""

    dim: int
    heads: int
    groups: int
    head_dim: int
    mlp_dim: int
    norm_epsilon: float
    attention_dropout: float


def has_llama_layers(model: nn.Module) -> bool:
    return any(_is(module, "LlamaDecoderLayer") for module in model.modules())


def llama_models(model: nn.Module) -> list[tuple[str, Any]]:
    """Return every LlamaModel in the model with its dotted name; none if the layers are elsewhere."""
    return [(name, module) for name, module in model.named_modules() if _is(module, "LlamaModel")]


def read_shape(layer: Layer) -> LayerShape:
    """Return the layer's shape. Raises ModeUnavailable that names each part that only transformers computes."""
    attention, norms = layer.self_attn, (layer.input_layernorm, layer.post_attention_layernorm)
    odd = _odd_parts(layer)
    if odd:
        raise ModeUnavailable(
            f"the model's layers use {', '.join(odd)}, which the converted layer would not compute",
            "Use a workload without it, or baseline and torchao modes, which keep the model's own layers",
        )
    head_dim = attention.head_dim
    return LayerShape(
        dim=attention.q_proj.in_features,
        heads=attention.q_proj.out_features // head_dim,
        groups=attention.k_proj.out_features // head_dim,
        head_dim=head_dim,
        mlp_dim=layer.mlp.up_proj.out_features,
        norm_epsilon=norms[0].variance_epsilon,
        attention_dropout=float(attention.attention_dropout),
    )


def rotation(llama: Any) -> torch.Tensor:
    """Return the angle of each position and pair, [positions, 1, 1, head width] float32, the same for both halves of a
    head. The frequencies and their base are the model's own.

    Raises ModeUnavailable for frequencies that change while the model runs, and for a rotation that is scaled.
    """
    rotary = llama.rotary_emb
    if rotary.rope_type not in _PLAIN_ROTATIONS or rotary.attention_scaling != 1:
        raise ModeUnavailable(
            f"the model's positions are rotated by {rotary.rope_type!r}, which the converted layer would not compute",
            f"Use a workload with one of {', '.join(_PLAIN_ROTATIONS)}",
        )
    frequencies = rotary.inv_freq.float()
    positions = torch.arange(llama.config.max_position_embeddings, device=frequencies.device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return torch.cat((angles, angles), -1)[:, None, None, :]


def _is(module: nn.Module, name: str) -> bool:
    return type(module).__module__ == _MODULE and type(module).__name__ == name


def _odd_parts(layer: Layer) -> list[str]:
    attention, mlp = layer.self_attn, layer.mlp
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    of_attention = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linears = [*of_attention, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    odd = []
    if not all(_is(norm, "LlamaRMSNorm") for norm in norms):
        odd.append("a norm that is not LlamaRMSNorm")
    elif norms[0].variance_epsilon != norms[1].variance_epsilon:
        odd.append("two different norm epsilons")
    if any(type(linear) is not nn.Linear for linear in linears):
        odd.append("linear layers that are converted already")
    elif any(linear.bias is not None for linear in linears):
        odd.append("biases")
    if attention.config.hidden_act not in ("silu", "swish"):
        odd.append(f"the activation {attention.config.hidden_act}")
    if not attention.is_causal:
        odd.append("attention that is not causal")
    return odd
