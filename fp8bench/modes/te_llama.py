"""Transformer Engine in transformers' Llama, with Llama's weights.

A layer is pre-norm: x + o_proj(attention(input_layernorm(x))), then x + down_proj(silu(gate_proj(y)) * up_proj(y)) with
y = post_attention_layernorm(x). Queries and keys are rotated by their position, with the two halves of a head as pairs.
Layers are recognized by class name and module, so that transformers is never imported for another kind of model. A part
that the converted layer would not compute is refused.

There are two ways, as for timm's Block: te.TransformerLayer for each layer (te), or te.Linear for each linear layer and
everything else unchanged (sdpa).

The arguments that make te.TransformerLayer compute Llama's layer, because its defaults do not, besides those of timm's
Block (te_block.py: the batch first, the model's dropouts, rows of all queries, keys and values in order):

  normalization="RMSNorm"               the default is LayerNorm; the epsilon is the model's
  activation="swiglu", bias=False       the first half of fc1's rows is the gate, the second the factor that it scales
  num_gqa_groups                        the default gives every query head a key of its own
  rotary_pos_emb                        none by default; the model's own frequencies, with the halves of a head as pairs

One difference remains: under autocast the layer's residual stream is bf16, and the plain model's is float32. The head
and the embedding are unchanged.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8bench.modes.protocol import named, named_exactly
from fp8bench.modes.te_block import require_none, swap_layers
from fp8bench.modes.te_gpt import Options
from fp8bench.modes.te_parallel import SUMMED, Group, Share, SharedLayer, gathered, mean_over, scattered
from fp8bench.schema.config import TEAttention
from fp8bench.schema.errors import ModeUnavailable

GEMMS = {"Linear": 1, "LayerNormLinear": 3, "LayerNormMLP": 3}
"""The number of the plain model's linear layers in each Transformer Engine module: q, k and v are one module, and gate,
up and down are one.
"""

_MODULE = "transformers.models.llama.modeling_llama"
_PLAIN_ROTATIONS = ("default", "linear", "llama3")
"""The rotations whose frequencies depend on the configuration only."""


def has_llama_layers(model: nn.Module) -> bool:
    return bool(named_exactly(model, (_MODULE, "LlamaDecoderLayer")))


def llama_models(model: nn.Module) -> list[Any]:
    return list(named_exactly(model, (_MODULE, "LlamaModel")).values())


def convert_llama(te: Any, model: nn.Module, te_attention: TEAttention, options: Options) -> nn.Module:
    """Replace the layers of every LlamaModel, or their linear layers, in place and one at a time. Raises
    ModeUnavailable for layers that Transformer Engine would not compute the same.
    """
    llamas = llama_models(model)
    if not llamas:
        raise ModeUnavailable(
            "the model has Llama's layers outside of a LlamaModel, whose positions this mode needs",
            "Use an llm workload, or write a mode for this model",
        )
    for llama in llamas:
        angles = rotation(llama) if te_attention == "te" else None
        for number, layer in enumerate(llama.layers):
            require_none(_odd_parts(layer), "layer")
            if angles is None:
                swap_layers(te, layer, list(named(layer, nn.Linear)))
            else:
                llama.layers[number] = TELlamaLayer(te, layer, angles, options).train(layer.training)
    return model


class TELlamaLayer(SharedLayer):
    def __init__(self, te: Any, plain: Any, angles: Tensor, options: Options) -> None:
        """angles: [positions, 1, 1, head width] float32, one tensor for all layers."""
        attention, head_dim = plain.self_attn, plain.self_attn.head_dim
        sizes = {
            "hidden_size": attention.q_proj.in_features,
            "ffn_hidden_size": plain.mlp.up_proj.out_features,
            "num_attention_heads": attention.q_proj.out_features // head_dim,
            "num_gqa_groups": attention.k_proj.out_features // head_dim,
            "kv_channels": head_dim,
            "layernorm_epsilon": plain.input_layernorm.variance_epsilon,
            "attention_dropout": float(attention.attention_dropout),
            "fuse_qkv_params": True,
            "normalization": "RMSNorm",
            "activation": "swiglu",
            "bias": False,
            "params_dtype": torch.float32,
            "device": attention.q_proj.weight.device,
        }
        parts = (
            *("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj"),
            *("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
        )
        super().__init__(te, parts, sizes)
        # Not a buffer, because DDP would broadcast it to all ranks before every step.
        self.angles, self.options = angles, options
        self.layer = self.made()
        self.copy_from(plain)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_of_the_plain_layer: Any
    ) -> Tensor:
        """hidden_states: [batch, sequence, width]. A mask would be ignored, and is refused; positions are its own."""
        if attention_mask is not None:
            raise ModeUnavailable(
                "the model passes an attention mask to a layer that was converted without one",
                "Use a workload whose attention is causal and has no mask beside",
            )
        first = self.options.is_first_microbatch
        return self.noted(self.layer(hidden_states, rotary_pos_emb=self.angles, is_first_microbatch=first))


def rotation(llama: Any) -> Tensor:
    """Return the angle of each position and pair, [positions, 1, 1, head width] float32, by the model's own
    frequencies. Raises ModeUnavailable for frequencies that change while the model runs, and for a scaled rotation.
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


def _odd_parts(layer: Any) -> str:
    attention, mlp = layer.self_attn, layer.mlp
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    of_attention = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linears = [*of_attention, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    rms = all((type(norm).__module__, type(norm).__name__) == (_MODULE, "LlamaRMSNorm") for norm in norms)
    plain = all(type(linear) is nn.Linear for linear in linears)
    activation = attention.config.hidden_act
    faults = {
        "a norm that is not LlamaRMSNorm": not rms,
        "two different norm epsilons": rms and norms[0].variance_epsilon != norms[1].variance_epsilon,
        "linear layers that are converted already": not plain,
        "biases": plain and any(linear.bias is not None for linear in linears),
        f"the activation {activation}": activation not in ("silu", "swish"),
        "attention that is not causal": not attention.is_causal,
    }
    return ", ".join(words for words, fault in faults.items() if fault)


def divide_llama(model: nn.Module, group: Group) -> dict[str, Share]:
    """Let the embedding, the last norm and the head process this rank's tokens, in place. Returns the shares of weights
    outside of layers. Raises ModeUnavailable for a head without the loss.
    """
    head: Any = getattr(model, "lm_head", None)
    llamas = llama_models(model)
    if len(llamas) != 1 or not hasattr(head, "weight"):
        raise ModeUnavailable(
            "ranks share a language model whose head gives the loss of its tokens, and this one has another",
            "Omit --tensor-parallel: --parallel fsdp shards any model",
        )
    [llama] = llamas
    llama.embed_tokens.register_forward_hook(lambda _module, _inputs, output: scattered(output, group))
    rank, size, plain = dist.get_rank(group), dist.get_world_size(group), head.forward

    def forward(hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """hidden: [sequence / size, batch, width]. Returns the mean loss over all tokens, or the logits of all."""
        if targets is None:
            logits: Tensor = plain(gathered(hidden, group))
            return logits
        return mean_over(plain(hidden.transpose(0, 1).contiguous(), targets.chunk(size, 1)[rank]), group)

    head.forward = forward
    of_own_tokens = (llama.norm.weight, head.weight)
    return {name: SUMMED for name, weight in model.named_parameters() if any(weight is one for one in of_own_tokens)}
