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


class LayerNormLinear(Linear):
    def __init__(self, in_features, out_features, eps=1e-5, bias=True, params_dtype=None, device=None, split=False):
        super().__init__(in_features, out_features, bias)
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(in_features))
        self.layer_norm_bias = nn.Parameter(torch.zeros(in_features))
        if split:
            for role, part in zip(("query", "key", "value"), self.weight.detach().chunk(3), strict=True):
                setattr(self, f"{role}_weight", nn.Parameter(part.clone()))
                setattr(self, f"{role}_bias", nn.Parameter(torch.zeros(part.shape[0])))
            del self.weight, self.bias

    def forward(self, x):
        x = nn.functional.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias, self.eps)
        if hasattr(self, "query_weight"):
            weight = torch.cat([self.query_weight, self.key_weight, self.value_weight])
            bias = torch.cat([self.query_bias, self.key_bias, self.value_bias])
            return nn.functional.linear(x, weight, bias)
        return nn.functional.linear(x, self.weight, self.bias)


class LayerNormMLP(nn.Module):
    def __init__(
        self, hidden_size, ffn_hidden_size, eps=1e-5, bias=True, activation="gelu", params_dtype=None, device=None
    ):
        super().__init__()
        assert activation == "gelu"
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(hidden_size))
        self.layer_norm_bias = nn.Parameter(torch.zeros(hidden_size))
        self.fc1_weight, self.fc2_weight = (
            _parameter(ffn_hidden_size, hidden_size),
            _parameter(hidden_size, ffn_hidden_size),
        )
        self.fc1_bias = nn.Parameter(torch.zeros(ffn_hidden_size)) if bias else None
        self.fc2_bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def forward(self, x):
        x = nn.functional.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias, self.eps)
        x = nn.functional.gelu(nn.functional.linear(x, self.fc1_weight, self.fc1_bias), approximate="tanh")
        return nn.functional.linear(x, self.fc2_weight, self.fc2_bias)


class _Attention(nn.Module):
    def __init__(self, dim, heads, eps, bias, fused):
        super().__init__()
        self.layernorm_qkv = LayerNormLinear(dim, 3 * dim, eps=eps, bias=bias, split=not fused)
        self.proj = Linear(dim, dim, bias=bias)
        self.heads = heads


class TransformerLayer(nn.Module):
    """Defaults as Transformer Engine's: sequence first, causal, epsilon 1e-5, separate query, key and value."""

    def __init__(
        self,
        hidden_size,
        ffn_hidden_size,
        num_attention_heads,
        layernorm_epsilon=1e-5,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        self_attn_mask_type="causal",
        attn_input_format="sbhd",
        fuse_qkv_params=False,
        qkv_weight_interleaved=True,
        bias=True,
        activation="gelu",
        params_dtype=None,
        device=None,
    ):
        super().__init__()
        assert not (fuse_qkv_params and qkv_weight_interleaved), "the stand-in knows only the plain order"
        self.self_attention = _Attention(hidden_size, num_attention_heads, layernorm_epsilon, bias, fuse_qkv_params)
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size, layernorm_epsilon, bias, activation)
        self.batch_first = attn_input_format == "bshd"
        self.causal = self_attn_mask_type == "causal"
        self.hidden_dropout, self.attention_dropout = hidden_dropout, attention_dropout

    def forward(self, x):
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y = x if self.batch_first else x.transpose(0, 1)
        a = self.self_attention
        q, k, v = a.layernorm_qkv(y).unflatten(-1, (3, a.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=self.attention_dropout)
        o = a.proj(o.transpose(1, 2).flatten(-2))
        x = x + nn.functional.dropout(o if self.batch_first else o.transpose(0, 1), self.hidden_dropout)
        return x + nn.functional.dropout(self.layernorm_mlp(x), self.hidden_dropout)
