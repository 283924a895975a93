"""`te-bf16-article` and `te-fp8-article`: the block that two well-known articles put into timm's ViT, in bf16 and in
their fp8 form. Both are hidden and never ranked.

They subclass te.TransformerLayer and pass it to VisionTransformer(block_fn=...) with the layer's defaults. The layer
then reads timm's [batch, tokens, width] as [sequence, batch, width], under a causal mask: token t of an image attends
to token t of the images before it in the batch. The class token starts equal in every image, so it never learns what
any image shows: the logits are the same for every image, and the gradient at the input is exactly zero. Nothing
crashes, and every step has a time. These modes copy the model's weights, so that attention is the only difference. They
show the purpose of the parity gate, and must end `invalid`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fp8bench.modes.te_block import TEBlock, transformer_layer
from fp8bench.modes.timm_block import Block, BlockShape
from fp8bench.modes.transformer_engine import TEBF16, TEFP8, import_te


class TEBF16Article(TEBF16):
    """te.TransformerLayer with its defaults inside a batch-first model."""

    name = "te-bf16-article"

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert only timm's blocks, because the articles use the block there."""
        return self.convert_timm(import_te(), model)

    def block_class(self) -> Callable[[Any, BlockShape, Block], nn.Module]:
        """Return the articles' block, but with the model's own weights."""
        return ArticleBlock


class TEFP8Article(TEFP8):
    """The same block under Transformer Engine's fp8 autocast, as the articles run it."""

    name = "te-fp8-article"

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert only timm's blocks, each layer in fp8."""
        return self.convert_timm(import_te(), model)

    def block_class(self) -> Callable[[Any, BlockShape, Block], nn.Module]:
        """Return the articles' block, but with the model's own weights."""
        return ArticleBlock


class ArticleBlock(nn.Module):
    """The articles' TE_Block: sizes and dropouts are passed, everything else has the default."""

    plain_weights = TEBlock.plain_weights

    def __init__(self, te: Any, shape: BlockShape, block: Block) -> None:
        super().__init__()
        self.layer = transformer_layer(te, shape, block)
        qkv, plain = self.layer.self_attention.layernorm_qkv, block.attn.qkv
        with torch.no_grad():
            qkv.layer_norm_weight.copy_(block.norm1.weight)
            qkv.layer_norm_bias.copy_(block.norm1.bias)
            for kind, values in (("weight", plain.weight), ("bias", plain.bias)):
                if values is not None:
                    for role, part in zip(("query", "key", "value"), values.chunk(3), strict=True):
                        getattr(qkv, f"{role}_{kind}").copy_(part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, tokens, dim], which the layer interprets as [sequence, batch, dim]."""
        y: torch.Tensor = self.layer(x)
        return y
