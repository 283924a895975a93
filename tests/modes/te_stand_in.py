"""Stands in for transformer_engine.pytorch on a CPU: same names of arguments, parameters and defaults, plain torch
inside.

It shows that our conversion passes what it must pass and copies what it must copy. It proves nothing about Transformer
Engine itself; tests/gpu does that on a real one.
"""

import torch
from torch import nn


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).normal_(0, 0.023))


class Linear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, params_dtype=None, device=None):
        super().__init__()
        self.weight = _parameter(out_features, in_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Its size alone is positional, as in Transformer Engine."""

    def __init__(self, normalized_shape, *, eps=1e-5, params_dtype=None, device=None):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(normalized_shape)), nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class _Norm(nn.Module):
    """What the modules with a norm before them share; RMSNorm has no bias."""

    def make_norm(self, width, eps, normalization):
        assert normalization in ("LayerNorm", "RMSNorm")
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(width))
        self.layer_norm_bias = nn.Parameter(torch.zeros(width)) if normalization == "LayerNorm" else None

    def norm(self, x):
        if self.layer_norm_bias is None:
            return nn.functional.rms_norm(x, x.shape[-1:], self.layer_norm_weight.to(x.dtype), self.eps)
        return nn.functional.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias, self.eps)


class LayerNormLinear(Linear, _Norm):
    def __init__(
        self,
        in_features,
        out_features,
        eps=1e-5,
        bias=True,
        params_dtype=None,
        device=None,
        split=False,
        normalization="LayerNorm",
    ):
        super().__init__(in_features, out_features, bias)
        self.make_norm(in_features, eps, normalization)
        if split:
            for role, part in zip(("query", "key", "value"), self.weight.detach().chunk(3), strict=True):
                setattr(self, f"{role}_weight", nn.Parameter(part.clone()))
                setattr(self, f"{role}_bias", nn.Parameter(torch.zeros(part.shape[0])))
            del self.weight, self.bias

    def forward(self, x):
        x = self.norm(x)
        if hasattr(self, "query_weight"):
            weight = torch.cat([self.query_weight, self.key_weight, self.value_weight])
            bias = torch.cat([self.query_bias, self.key_bias, self.value_bias])
            return nn.functional.linear(x, weight, bias)
        return nn.functional.linear(x, self.weight, self.bias)


class LayerNormMLP(_Norm):
    def __init__(
        self,
        hidden_size,
        ffn_hidden_size,
        eps=1e-5,
        bias=True,
        activation="gelu",
        params_dtype=None,
        device=None,
        normalization="LayerNorm",
    ):
        super().__init__()
        assert activation in ("gelu", "swiglu")
        self.make_norm(hidden_size, eps, normalization)
        self.gated = activation == "swiglu"
        rows = 2 * ffn_hidden_size if self.gated else ffn_hidden_size
        self.fc1_weight, self.fc2_weight = _parameter(rows, hidden_size), _parameter(hidden_size, ffn_hidden_size)
        self.fc1_bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self.fc2_bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def forward(self, x):
        x = nn.functional.linear(self.norm(x), self.fc1_weight, self.fc1_bias)
        if self.gated:
            gate, up = x.chunk(2, -1)
            x = nn.functional.silu(gate) * up
        else:
            x = nn.functional.gelu(x, approximate="tanh")
        return nn.functional.linear(x, self.fc2_weight, self.fc2_bias)


class _Attention(nn.Module):
    def __init__(self, dim, heads, groups, width, eps, bias, fused, normalization):
        super().__init__()
        self.width, self.rows = width, [heads * width, groups * width, groups * width]
        self.layernorm_qkv = LayerNormLinear(
            dim, sum(self.rows), eps=eps, bias=bias, split=not fused, normalization=normalization
        )
        self.proj = Linear(heads * width, dim, bias=bias)


class TransformerLayer(nn.Module):
    """Defaults as Transformer Engine's: sequence first, causal, epsilon 1e-5, separate query, key and value, LayerNorm,
    a key for every query.
    """

    def __init__(
        self,
        hidden_size,
        ffn_hidden_size,
        num_attention_heads,
        num_gqa_groups=None,
        layernorm_epsilon=1e-5,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        kv_channels=None,
        self_attn_mask_type="causal",
        attn_input_format="sbhd",
        fuse_qkv_params=False,
        qkv_weight_interleaved=True,
        bias=True,
        activation="gelu",
        normalization="LayerNorm",
        params_dtype=None,
        device=None,
    ):
        super().__init__()
        assert not (fuse_qkv_params and qkv_weight_interleaved), "the stand-in knows only the plain order"
        groups, width = num_gqa_groups or num_attention_heads, kv_channels or hidden_size // num_attention_heads
        self.self_attention = _Attention(
            hidden_size,
            num_attention_heads,
            groups,
            width,
            layernorm_epsilon,
            bias,
            fuse_qkv_params,
            normalization,
        )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, layernorm_epsilon, bias, activation, normalization=normalization
        )
        self.batch_first = attn_input_format == "bshd"
        self.causal = self_attn_mask_type == "causal"
        self.hidden_dropout, self.attention_dropout = hidden_dropout, attention_dropout

    def forward(self, x, rotary_pos_emb=None):
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y = x if self.batch_first else x.transpose(0, 1)
        a = self.self_attention
        parts = a.layernorm_qkv(y).split(a.rows, -1)
        q, k, v = (part.unflatten(-1, (-1, a.width)).transpose(1, 2) for part in parts)
        if rotary_pos_emb is not None:
            q, k = _rotated(q, rotary_pos_emb), _rotated(k, rotary_pos_emb)
        o = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, dropout_p=self.attention_dropout, enable_gqa=True
        )
        o = a.proj(o.transpose(1, 2).flatten(-2))
        x = x + nn.functional.dropout(o if self.batch_first else o.transpose(0, 1), self.hidden_dropout)
        return x + nn.functional.dropout(self.layernorm_mlp(x), self.hidden_dropout)


def _rotated(x, angles):
    """x: [batch, heads, sequence, width]. angles: [positions, 1, 1, width]; the halves of a head are the pairs."""
    angles = angles[: x.shape[2], 0, 0]
    first, second = x.float().chunk(2, -1)
    return (x.float() * angles.cos() + torch.cat((-second, first), -1) * angles.sin()).to(x.dtype)


def get_cudnn_version():
    return (9, 10, 2)
