"""`te-bf16-article`: the block that two well-known articles put into timm's ViT. Hidden, and never ranked.

They subclass te.TransformerLayer and pass it to VisionTransformer(block_fn=...) with the layer's defaults. The layer
then reads timm's [batch, tokens, width] as [sequence, batch, width], under a causal mask: token t of an image attends
to token t of the images before it in the batch. The class token starts equal in every image, so it never learns what
any image shows: the logits are the same for every image, and the gradient at the input is exactly zero. Nothing
crashes, and every step has a time. This mode copies the model's weights, so that the attention alone is at fault; it is
here to show what the parity gate is for, and must end `invalid`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fp8bench.modes.te_block import copy_layernorm_mlp, copy_linear
from fp8bench.modes.timm_block import BlockShape, BlockWeights
from fp8bench.modes.transformer_engine import TEBF16


class TEBF16Article(TEBF16):
    """te.TransformerLayer with its defaults inside a batch-first model."""

    name = "te-bf16-article"

    def block_class(self) -> Callable[[Any, BlockShape, BlockWeights], nn.Module]:
        """The articles' block, but with the model's own weights."""
        return ArticleBlock


class ArticleBlock(nn.Module):
    """The articles' TE_Block: sizes and dropouts are given, everything else is left to the defaults."""

    def __init__(self, te: Any, shape: BlockShape, weights: BlockWeights) -> None:
        super().__init__()
        self.layer = te.TransformerLayer(
            hidden_size=shape.dim,
            ffn_hidden_size=shape.mlp_dim,
            num_attention_heads=shape.num_heads,
            hidden_dropout=shape.hidden_dropout,
            attention_dropout=shape.attention_dropout,
            device=weights.qkv_weight.device,
        )
        attention = self.layer.self_attention
        qkv = attention.layernorm_qkv
        with torch.no_grad():
            qkv.layer_norm_weight.copy_(weights.norm1_weight)
            qkv.layer_norm_bias.copy_(weights.norm1_bias)
            for role, weight in zip(("query", "key", "value"), weights.qkv_weight.chunk(3), strict=True):
                getattr(qkv, f"{role}_weight").copy_(weight)
            if weights.qkv_bias is not None:
                for role, bias in zip(("query", "key", "value"), weights.qkv_bias.chunk(3), strict=True):
                    getattr(qkv, f"{role}_bias").copy_(bias)
        copy_linear(attention.proj, weights.proj_weight, weights.proj_bias)
        copy_layernorm_mlp(self.layer.layernorm_mlp, weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, tokens, dim], which the layer takes for [sequence, batch, dim]."""
        y: torch.Tensor = self.layer(x)
        return y
