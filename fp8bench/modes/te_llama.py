"""Transformer Engine in transformers' Llama, with Llama's weights.

Two ways, so that attention and fusion can be held equal when precisions are compared:

  te    te.TransformerLayer for each layer: norms, attention, MLP and residuals in Transformer Engine's own kernels.
  sdpa  te.Linear for each linear layer; all else stays as it is, with torch's scaled_dot_product_attention.

What makes te.TransformerLayer compute Llama's layer, each against a default that does not:

  normalization="RMSNorm"               the default is LayerNorm; the epsilon is the model's
  activation="swiglu", bias=False       the first half of fc1's rows is the gate, the second what it is multiplied with
  num_gqa_groups                        the default gives every query head a key of its own
  rotary_pos_emb                        none by default; the model's own frequencies, the halves of a head as pairs
  attn_input_format="bshd"              the default reads [sequence, batch, width]
  hidden_dropout, attention_dropout     the model's, not 0.1
  fuse_qkv_params, not interleaved      rows are all queries, all keys, all values, heads in order

The mask is causal, as it is by default, and stated all the same. What stays different: under autocast the layer's
residual stream is bf16 where the plain model's is float32. The head and the embedding stay as they are.
"""

from typing import Any

import torch
from torch import nn

from fp8bench.modes.llama_block import Layer, LayerShape, llama_models, read_shape, rotation
from fp8bench.modes.te_block import copy_weight
from fp8bench.modes.te_layers import swap_layers
from fp8bench.schema.config import TEAttention
from fp8bench.schema.errors import ModeUnavailable

GEMMS = {"Linear": 1, "LayerNormLinear": 3, "LayerNormMLP": 3}
"""Linear layers of the plain model inside each Transformer Engine module: q, k and v are one, and so are gate and up
with down.
"""


def convert_llama(te: Any, model: nn.Module, te_attention: TEAttention) -> nn.Module:
    """Replace the layers of every LlamaModel, or their linear layers, in place. One layer at a time: never are two
    copies of all weights in memory. Raises ModeUnavailable for layers that would not compute the same.
    """
    llamas = llama_models(model)
    if not llamas:
        raise ModeUnavailable(
            "the model has Llama's layers outside of a LlamaModel, whose positions this mode needs",
            "Use an llm workload, or write a mode for this model",
        )
    for _, llama in llamas:
        angles = rotation(llama) if te_attention == "te" else None
        for number in range(len(llama.layers)):
            layer = llama.layers[number]
            shape = read_shape(layer)
            if angles is None:
                swap_layers(te, layer, [name for name, part in layer.named_modules() if isinstance(part, nn.Linear)])
            else:
                llama.layers[number] = TELlamaLayer(te, shape, layer, angles).train(layer.training)
    return model


class TELlamaLayer(nn.Module):
    """te.TransformerLayer, called as LlamaDecoderLayer is."""

    residual_dtype: torch.dtype | None = None

    def __init__(self, te: Any, shape: LayerShape, layer: Layer, angles: torch.Tensor) -> None:
        """angles: [positions, 1, 1, head width] float32, one tensor for all layers."""
        super().__init__()
        # No buffer: DDP would send it to all ranks before every step.
        self.angles = angles
        self.layer = te.TransformerLayer(
            hidden_size=shape.dim,
            ffn_hidden_size=shape.mlp_dim,
            num_attention_heads=shape.heads,
            num_gqa_groups=shape.groups,
            kv_channels=shape.head_dim,
            layernorm_epsilon=shape.norm_epsilon,
            hidden_dropout=0.0,
            attention_dropout=shape.attention_dropout,
            self_attn_mask_type="causal",
            attn_input_format="bshd",
            fuse_qkv_params=True,
            qkv_weight_interleaved=False,
            normalization="RMSNorm",
            activation="swiglu",
            bias=False,
            params_dtype=torch.float32,
            device=layer.self_attn.q_proj.weight.device,
        )
        self._copy(layer)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **_of_the_plain_layer: Any
    ) -> torch.Tensor:
        """hidden_states: [batch, sequence, width]. A mask is refused: it would be ignored; so is what comes beside it,
        positions in ready-made sines and cosines among it.
        """
        if attention_mask is not None:
            raise ModeUnavailable(
                "the model passes an attention mask to a layer that was converted without one",
                "Use a workload whose attention is causal and has no mask beside",
            )
        y: torch.Tensor = self.layer(hidden_states, rotary_pos_emb=self.angles)
        self.residual_dtype = y.dtype
        return y

    def _copy(self, layer: Layer) -> None:
        attention, mlp = self.layer.self_attention, self.layer.layernorm_mlp
        plain = layer.self_attn
        qkv = torch.cat([plain.q_proj.weight, plain.k_proj.weight, plain.v_proj.weight])
        copy_weight(attention.layernorm_qkv.layer_norm_weight, layer.input_layernorm.weight)
        copy_weight(attention.layernorm_qkv.weight, qkv)
        copy_weight(attention.proj.weight, plain.o_proj.weight)
        copy_weight(mlp.layer_norm_weight, layer.post_attention_layernorm.weight)
        copy_weight(mlp.fc1_weight, torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]))
        copy_weight(mlp.fc2_weight, layer.mlp.down_proj.weight)
