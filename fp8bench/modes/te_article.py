"""`te-bf16-article` and `te-fp8-article`: the block that two well-known articles put into timm's ViT, in bf16 and in
their fp8 form. Both are hidden and never ranked.

They pass te.TransformerLayer to VisionTransformer(block_fn=...) with its defaults. The layer then reads timm's [batch,
tokens, width] as [sequence, batch, width], under a causal mask: token t of an image attends to token t of the images
before it in the batch. The class token starts equal in every image, so the logits are the same for every image, and the
gradient at the input is exactly zero. These modes copy the model's weights, so that attention is the only difference.
They show the purpose of the parity gate, and must end `invalid`.
"""

from typing import Any

import torch
from torch import nn

from fp8bench.modes.te_block import TIMM_NAMES, Block, ConvertedLayer, layer_sizes
from fp8bench.modes.transformer_engine import TEBF16, TEFP8, import_te


class ArticleBlock(ConvertedLayer):
    """The articles' TE_Block: sizes and dropouts are passed, everything else has the default."""

    def __init__(self, te: Any, block: Block) -> None:
        super().__init__(TIMM_NAMES, fused_qkv=False)
        self.layer = te.TransformerLayer(**layer_sizes(block))
        self.copy_from(block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, tokens, dim], which the layer interprets as [sequence, batch, dim]."""
        return self.noted(self.layer(x))


class TEBF16Article(TEBF16):
    """te.TransformerLayer with its defaults inside a batch-first model; only timm's blocks, as in the articles."""

    name = "te-bf16-article"

    def convert(self, model: nn.Module) -> nn.Module:
        return self.convert_timm(import_te(), model, ArticleBlock)


class TEFP8Article(TEFP8):
    name = "te-fp8-article"

    def convert(self, model: nn.Module) -> nn.Module:
        return self.convert_timm(import_te(), model, ArticleBlock)
