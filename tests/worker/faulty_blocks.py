"""Blocks that compute something else than the one they wrap, each as a hasty conversion would."""

import copy

import torch
from torch import nn


class AcrossTheBatch(nn.Module):
    """Takes [batch, tokens, width] for [tokens, batch, width]: attends to the same token of the other images."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x.transpose(0, 1)).transpose(0, 1)


class Causal(nn.Module):
    """Lets a token attend only to itself and to those before it."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        attn = self.block.attn
        batch, tokens, width = x.shape
        qkv = attn.qkv(self.block.norm1(x)).reshape(batch, tokens, 3, attn.num_heads, attn.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + attn.proj(out.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.block.mlp(self.block.norm2(x))


class Forgetful(nn.Module):
    """Has the right shape and weights of its own."""

    def __init__(self, block):
        super().__init__()
        self.block = copy.deepcopy(block)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.block.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.2, generator=generator)

    def forward(self, x):
        return self.block(x)


class IgnoresItsInput(nn.Module):
    """Gives the same output whatever comes in."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(torch.ones_like(x))
