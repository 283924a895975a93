"""Transformer Engine blocks that compute timm's Block, with timm's weights.

There are two, so that attention can be the same when precisions are compared:

  te    te.TransformerLayer: attention, MLP and residuals in Transformer Engine's own kernels.
  sdpa  LayerNormLinear, Linear and LayerNormMLP around torch's scaled_dot_product_attention, as in the plain model.

The arguments that make te.TransformerLayer compute timm's Block, because its defaults do not:

  attn_input_format="bshd"            the default reads [sequence, batch, width], so a batch-first model would attend
                                      across the images of its batch
  self_attn_mask_type="no_mask"       the default is causal
  layernorm_epsilon                   timm's 1e-6, not 1e-5
  attention_dropout, hidden_dropout   the model's, not 0.1
  fuse_qkv_params, not interleaved    so that timm's qkv weight (all queries, all keys, all values) fits unchanged

Two differences remain: the activation is GELU's tanh form and timm's is the erf form, and under autocast the residual
stream of the TransformerLayer is bf16 and timm's is float32. Both are within the tolerance of the parity gate and are
stated in the evidence.
"""

from typing import Any, ClassVar

import torch
from torch import nn

from fp8bench.modes.timm_block import Block, BlockShape
from fp8bench.schema.errors import ModeUnavailable

_PAIRS = ("weight", "bias")

_OF_LAYER = {
    **{f"self_attention.layernorm_qkv.layer_norm_{one}": f"norm1.{one}" for one in _PAIRS},
    **{f"self_attention.layernorm_qkv.{one}": f"attn.qkv.{one}" for one in _PAIRS},
    **{
        f"self_attention.layernorm_qkv.{role}_{one}": f"attn.qkv.{one}"
        for role in ("query", "key", "value")
        for one in _PAIRS
    },
    **{f"self_attention.proj.{one}": f"attn.proj.{one}" for one in _PAIRS},
    **{f"layernorm_mlp.layer_norm_{one}": f"norm2.{one}" for one in _PAIRS},
    **{f"layernorm_mlp.{linear}_{one}": f"mlp.{linear}.{one}" for linear in ("fc1", "fc2") for one in _PAIRS},
}
"""The plain block's name of each weight of a te.TransformerLayer, also of one with queries, keys and values apart."""


class _ConvertedBlock(nn.Module):
    """The base of both blocks: timm's call signature, and a note of the residual stream's dtype."""

    residual_dtype: torch.dtype | None = None
    plain_weights: ClassVar[dict[str, str]] = {f"layer.{name}": of for name, of in _OF_LAYER.items()}
    """The plain block's name of each weight."""

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        """x: [batch, tokens, dim]. A mask is refused, because a block converted without one would ignore it."""
        if attn_mask is not None or is_causal:
            raise ModeUnavailable(
                "the model passes an attention mask to a block that was converted without one",
                "Use a workload that attends without a mask",
            )
        y = self.compute(x)
        self.residual_dtype = y.dtype
        return y

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block. x and the result: [batch, tokens, dim]."""
        raise TypeError(f"{type(self).__name__} has no compute")


class TEBlock(_ConvertedBlock):
    """te.TransformerLayer with the arguments that make it timm's Block."""

    def __init__(self, te: Any, shape: BlockShape, block: Block) -> None:
        super().__init__()
        self.layer = transformer_layer(
            te,
            shape,
            block,
            layernorm_epsilon=shape.norm_epsilon,
            self_attn_mask_type="no_mask",
            attn_input_format="bshd",
            fuse_qkv_params=True,
            qkv_weight_interleaved=False,
            bias=shape.bias,
            activation="gelu",
            params_dtype=torch.float32,
        )
        copy_layernorm_linear(self.layer.self_attention.layernorm_qkv, block)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block. x and the result: [batch, tokens, dim]."""
        y: torch.Tensor = self.layer(x)
        return y


class TESDPABlock(_ConvertedBlock):
    """Transformer Engine's linear layers around torch's attention, with residuals added as in timm."""

    plain_weights: ClassVar[dict[str, str]] = {
        **{f"qkv.layer_norm_{one}": f"norm1.{one}" for one in _PAIRS},
        **{f"qkv.{one}": f"attn.qkv.{one}" for one in _PAIRS},
        **{f"proj.{one}": f"attn.proj.{one}" for one in _PAIRS},
        **{f"mlp.layer_norm_{one}": f"norm2.{one}" for one in _PAIRS},
        **{f"mlp.{linear}_{one}": f"mlp.{linear}.{one}" for linear in ("fc1", "fc2") for one in _PAIRS},
    }

    def __init__(self, te: Any, shape: BlockShape, block: Block) -> None:
        super().__init__()
        options = {"bias": shape.bias, "params_dtype": torch.float32, "device": block.attn.qkv.weight.device}
        self.shape = shape
        self.qkv = te.LayerNormLinear(shape.dim, 3 * shape.dim, eps=shape.norm_epsilon, **options)
        self.proj = te.Linear(shape.dim, shape.dim, **options)
        self.mlp = te.LayerNormMLP(shape.dim, shape.mlp_dim, eps=shape.norm_epsilon, activation="gelu", **options)
        self.dropout = nn.Dropout(shape.hidden_dropout)
        copy_layernorm_linear(self.qkv, block)
        copy_linear(self.proj, block.attn.proj.weight, block.attn.proj.bias)
        copy_layernorm_mlp(self.mlp, block)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block. x and the result: [batch, tokens, dim]."""
        batch, tokens, dim = x.shape
        heads = self.shape.num_heads
        qkv = self.qkv(x).reshape(batch, tokens, 3, heads, dim // heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.shape.attention_dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        x = x + self.dropout(self.proj(attended.transpose(1, 2).reshape(batch, tokens, dim)))
        x = x + self.dropout(self.mlp(x))
        return x


def transformer_layer(te: Any, shape: BlockShape, block: Block, **options: Any) -> Any:
    """Return a te.TransformerLayer with the block's sizes, dropouts and weights, except for norm1 and qkv, whose layout
    depends on the options.
    """
    layer = te.TransformerLayer(
        hidden_size=shape.dim,
        ffn_hidden_size=shape.mlp_dim,
        num_attention_heads=shape.num_heads,
        hidden_dropout=shape.hidden_dropout,
        attention_dropout=shape.attention_dropout,
        device=block.attn.qkv.weight.device,
        **options,
    )
    copy_linear(layer.self_attention.proj, block.attn.proj.weight, block.attn.proj.bias)
    copy_layernorm_mlp(layer.layernorm_mlp, block)
    return layer


def copy_layernorm_linear(layer: Any, block: Block) -> None:
    """Copy norm1 and qkv into a te.LayerNormLinear."""
    copy_weight(layer.layer_norm_weight, block.norm1.weight)
    copy_weight(layer.layer_norm_bias, block.norm1.bias)
    copy_linear(layer, block.attn.qkv.weight, block.attn.qkv.bias)


def copy_linear(layer: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Copy weight and bias into a te.Linear (or the linear part of a te.LayerNormLinear)."""
    copy_weight(layer.weight, weight)
    if bias is not None:
        copy_weight(layer.bias, bias)


def copy_layernorm_mlp(layer: Any, block: Block) -> None:
    """Copy norm2, fc1 and fc2 into a te.LayerNormMLP."""
    fc1, fc2 = block.mlp.fc1, block.mlp.fc2
    copy_weight(layer.layer_norm_weight, block.norm2.weight)
    copy_weight(layer.layer_norm_bias, block.norm2.bias)
    copy_weight(layer.fc1_weight, fc1.weight)
    copy_weight(layer.fc2_weight, fc2.weight)
    if fc1.bias is not None and fc2.bias is not None:
        copy_weight(layer.fc1_bias, fc1.bias)
        copy_weight(layer.fc2_bias, fc2.bias)


@torch.no_grad()
def copy_weight(target: Any, source: torch.Tensor) -> None:
    """Copy a weight. Raises ModeUnavailable if Transformer Engine's weight has another shape."""
    if target.shape != source.shape:
        raise ModeUnavailable(
            f"this Transformer Engine keeps a weight as {list(target.shape)} where the model has {list(source.shape)}",
            "Use the Transformer Engine version in constraints.txt",
        )
    target.copy_(source)
