"""Stands in for Transformer Engine 2.20 on a CPU: same names of arguments, parameters and defaults. Its
autocast nests, and modules note whether they ran in fp8 and under which recipe; nothing is rounded. It shows that our
conversion passes and copies what it must; tests/gpu has the real one.
"""

import sys
import types
from contextlib import contextmanager, nullcontext
from dataclasses import make_dataclass
from enum import Enum
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd, reduce_scatter_tensor_autograd

pytorch = common = recipe = sys.modules[__name__]
MODULES = {f"transformer_engine{name}": pytorch for name in ("", ".pytorch", ".common", ".common.recipe")}

fp8 = types.SimpleNamespace(enabled=False, recipe=None, depth=0, rolls=0, again=[])


class Format(Enum):
    E4M3 = 1
    E5M2 = 2
    HYBRID = 3


def _recipe(name, **defaults):
    return make_dataclass(name, [(field, type(default), default) for field, default in defaults.items()])


OF_HISTORY = {"margin": 0, "amax_history_len": 1024, "amax_compute_algo": "max"}
DelayedScaling = _recipe("DelayedScaling", **OF_HISTORY, fp8_format=Format.HYBRID, fp8_dpa=False)
Float8CurrentScaling = _recipe("Float8CurrentScaling", fp8_format=Format.HYBRID, fp8_dpa=False)
Float8BlockScaling = _recipe("Float8BlockScaling", fp8_format=Format.E4M3)
MXFP8BlockScaling = _recipe("MXFP8BlockScaling", fp8_format=Format.E4M3, fp8_dpa=False)


@contextmanager
def autocast(enabled=True, recipe=None, amax_reduction_group=None):
    """The end of an outermost one rolls all amax histories, if it was enabled."""
    before = fp8.enabled, fp8.recipe
    fp8.enabled, fp8.recipe = enabled, recipe
    fp8.depth += 1
    try:
        yield
    finally:
        fp8.depth -= 1
        fp8.rolls += enabled and fp8.depth == 0
        fp8.enabled, fp8.recipe = before


def checkpoint(function, *args, use_reentrant, context_fn=lambda: (nullcontext(), nullcontext()), **kwargs):
    """The second pass, which backward would run, waits in `fp8.again`."""
    assert not use_reentrant
    first, second = context_fn()
    enabled, recipe = fp8.enabled, fp8.recipe

    def again():
        with second, autocast(enabled=enabled, recipe=recipe):
            function(*args, **kwargs)

    fp8.again.append(again)
    with first:
        return function(*args, **kwargs)


ROLES = ("query", "key", "value")


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).normal_(0, 0.023))


class _Fused(torch.autograd.Function):
    """A linear layer whose weight gradient goes to weight.main_grad, as Transformer Engine's with
    fuse_wgrad_accumulation: added to it, unless this is the first micro-batch, or the weight says that it is
    overwritten.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, holder, is_first):
        ctx.save_for_backward(x, weight)
        ctx.holder = holder
        ctx.overwrite = is_first is True or getattr(holder, "overwrite_main_grad", False)
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        wgrad = rows.float().t() @ x.flatten(0, -2).float()
        main = ctx.holder.main_grad
        main.copy_(wgrad if ctx.overwrite else main + wgrad)
        return gradient @ weight, None, rows.sum(0) if ctx.needs_input_grad[2] else None, None, None


class _GEMMs(nn.Module):
    """What all modules share: weights cast once a step, gradients beside them, their dtype, what they ran under."""

    fused = fp8_initialized = False

    def make_weight(self, rows, columns, bias):
        self.weight, self.bias = _parameter(rows, columns), nn.Parameter(torch.zeros(rows)) if bias else None

    def __init_subclass__(cls):
        cls.__module__ = "transformer_engine.stand_in"

    def linear(self, name, x, weight, bias, is_first):
        self.fp8_initialized = fp8.enabled
        if fp8.enabled:
            self.fp8_meta = {"recipe": fp8.recipe}
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        held = weight
        if is_first is not None:
            kept = self.__dict__.setdefault("kept", {})
            if is_first or name not in kept:
                kept[name] = weight.detach().clone()
            held = weight + (kept[name] - weight).detach()
        bias = None if bias is None else bias.to(x.dtype)
        if self.fused:
            return _Fused.apply(x, held.to(x.dtype), bias, weight, is_first)
        return nn.functional.linear(x, held.to(x.dtype), bias)


class Linear(_GEMMs):
    def __init__(self, in_features, out_features, bias=True, params_dtype=None, device=None):
        super().__init__()
        self.make_weight(out_features, in_features, bias)
        self.to(params_dtype or torch.float32)

    def forward(self, x, is_first_microbatch=None, with_bias=True):
        return self.linear("weight", x, self.weight, self.bias if with_bias else None, is_first_microbatch)


class LayerNorm(nn.Module):
    """Its size alone is positional, as in Transformer Engine."""

    def __init__(self, normalized_shape, *, eps=1e-5, params_dtype=None, device=None):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(normalized_shape)), nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class _Norm(_GEMMs):
    """What the modules with a norm before them share; RMSNorm has no bias."""

    def make_norm(self, width, eps, rms):
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(width))
        self.layer_norm_bias = None if rms else nn.Parameter(torch.zeros(width))

    def norm(self, x):
        if self.layer_norm_bias is None:
            return nn.functional.rms_norm(x, x.shape[-1:], self.layer_norm_weight.to(x.dtype), self.eps)
        norm = (self.layer_norm_weight.to(x.dtype), self.layer_norm_bias.to(x.dtype))
        return nn.functional.layer_norm(x, x.shape[-1:], *norm, self.eps)


class LayerNormLinear(_Norm):
    def __init__(
        self, in_features, out_features, eps=1e-5, bias=True, params_dtype=None, device=None, split=False, rms=False
    ):
        super().__init__()
        self.make_norm(in_features, eps, rms)
        self.split = split
        if split:
            for role in ROLES:
                setattr(self, f"{role}_weight", _parameter(out_features // 3, in_features))
                setattr(self, f"{role}_bias", nn.Parameter(torch.zeros(out_features // 3)))
        else:
            self.make_weight(out_features, in_features, bias)
        self.to(params_dtype or torch.float32)

    def whole(self, what):
        return torch.cat([getattr(self, f"{role}_{what}") for role in ROLES]) if self.split else getattr(self, what)

    def forward(self, x, is_first_microbatch=None, gather=lambda x: x):
        return self.linear(
            "weight", gather(self.norm(x)), self.whole("weight"), self.whole("bias"), is_first_microbatch
        )


class LayerNormMLP(_Norm):
    def __init__(self, width, ffn_hidden_size, eps=1e-5, bias=True, activation="gelu", rms=False, **_of_tensors):
        super().__init__()
        assert activation in ("gelu", "swiglu")
        assert _of_tensors.keys() <= {"params_dtype", "device"}
        self.make_norm(width, eps, rms)
        self.gated = activation == "swiglu"
        rows = 2 * ffn_hidden_size if self.gated else ffn_hidden_size
        self.fc1_weight, self.fc2_weight = _parameter(rows, width), _parameter(width, ffn_hidden_size)
        self.fc1_bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self.fc2_bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.to(_of_tensors.get("params_dtype") or torch.float32)

    def forward(self, x, is_first_microbatch=None, gather=lambda x: x, scatter=lambda x: x):
        x = self.linear("fc1", gather(self.norm(x)), self.fc1_weight, self.fc1_bias, is_first_microbatch)
        if self.gated:
            gate, up = x.chunk(2, -1)
            x = nn.functional.silu(gate) * up
        else:
            x = nn.functional.gelu(x, approximate="tanh")
        # The bias is added to whole sums, by the rank that has the tokens.
        x = scatter(self.linear("fc2", x, self.fc2_weight, None, is_first_microbatch))
        return x if self.fc2_bias is None else x + self.fc2_bias.to(x.dtype)


class DotProductAttention(nn.Module):
    """Takes queries, keys and values, [batch, sequence, heads, width] or the sequence first; or, as from 2.19 on, one
    tensor with all three along `qkv_interleave_dim`, of which it takes slices.
    """

    def __init__(self, batch_first, causal, dropout):
        super().__init__()
        self.batch_first, self.causal, self.dropout = batch_first, causal, dropout

    def forward(self, query_layer, key_layer, value_layer, qkv_layer=None, qkv_interleave_dim=-3):
        parts = (query_layer, key_layer, value_layer)
        if qkv_layer is not None:
            assert parts == (None, None, None)
            parts = [qkv_layer.select(qkv_interleave_dim, place) for place in range(3)]
        q, k, v = ((part if self.batch_first else part.transpose(0, 1)).transpose(1, 2) for part in parts)
        o = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, dropout_p=self.dropout, enable_gqa=True
        )
        o = o.transpose(1, 2).flatten(-2)
        return o if self.batch_first else o.transpose(0, 1)


DEFAULTS = {
    **{"num_gqa_groups": None, "layernorm_epsilon": 1e-5, "hidden_dropout": 0.1, "attention_dropout": 0.1},
    **{"kv_channels": None, "self_attn_mask_type": "causal", "attn_input_format": "sbhd", "fuse_qkv_params": False},
    **{"qkv_weight_interleaved": True, "bias": True, "activation": "gelu", "normalization": "LayerNorm"},
    **{"params_dtype": None, "device": None, "set_parallel_mode": False, "sequence_parallel": False, "tp_group": None},
    "fuse_wgrad_accumulation": False,
}


class TransformerLayer(nn.Module):
    """Defaults as Transformer Engine's: sequence first, causal, epsilon 1e-5, separate query, key and value, LayerNorm,
    a key for every query. With a group of several ranks, this rank's heads and columns, and a part of the sequence.
    """

    def __init__(self, hidden_size, ffn_hidden_size, num_attention_heads, **options):
        super().__init__()
        assert options.keys() <= DEFAULTS.keys(), options.keys() - DEFAULTS.keys()
        o = types.SimpleNamespace(**DEFAULTS | options)
        assert o.normalization in ("LayerNorm", "RMSNorm")
        assert not (o.fuse_qkv_params and o.qkv_weight_interleaved), "the stand-in knows only the plain order"
        assert o.fuse_qkv_params or not o.fuse_wgrad_accumulation, "the one needs the other"
        size = dist.get_world_size(o.tp_group) if o.tp_group is not None else 1
        assert size == 1 or (o.set_parallel_mode and o.sequence_parallel and o.attn_input_format == "sbhd")
        self.group = o.tp_group if size > 1 else None
        self.alone = (o.set_parallel_mode, o.sequence_parallel, o.tp_group is not None)
        self.batch_first, self.causal = o.attn_input_format == "bshd", o.self_attn_mask_type == "causal"
        self.hidden_dropout, self.attention_dropout = o.hidden_dropout, o.attention_dropout
        groups, width = o.num_gqa_groups or num_attention_heads, o.kv_channels or hidden_size // num_attention_heads
        eps, rms, heads = o.layernorm_epsilon, o.normalization == "RMSNorm", num_attention_heads // size
        self.self_attention = a = nn.Module()
        a.core_attention = DotProductAttention(self.batch_first, self.causal, o.attention_dropout)
        a.width, a.rows = width, [heads * width, groups // size * width, groups // size * width]
        a.layernorm_qkv = LayerNormLinear(
            hidden_size, sum(a.rows), eps=eps, bias=o.bias, split=not o.fuse_qkv_params, rms=rms
        )
        a.proj = Linear(heads * width, hidden_size, bias=o.bias)
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size // size, eps, o.bias, o.activation, rms)
        for module in self.modules():
            if isinstance(module, _GEMMs):
                module.fused = o.fuse_wgrad_accumulation
        self.to(o.params_dtype or torch.float32)

    def forward(self, x, rotary_pos_emb=None, is_first_microbatch=None):
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        gather, scatter = (lambda x: x), (lambda x: x)
        if self.group is not None:
            # All ranks' parts of the sequence, which is first; and of the sum of what ranks have, this one's.
            gather = partial(all_gather_tensor_autograd, gather_dim=0, group=self.group)
            scatter = partial(reduce_scatter_tensor_autograd, reduceOp="sum", scatter_dim=0, group=self.group)
        a, first = self.self_attention, is_first_microbatch
        qkv = a.layernorm_qkv(x, first, gather)
        if rotary_pos_emb is None and len(set(a.rows)) == 1:
            packed = qkv.unflatten(-1, (3, -1, a.width))
            o = a.core_attention(None, None, None, qkv_layer=packed, qkv_interleave_dim=-3)
        else:
            q, k, v = (part.unflatten(-1, (-1, a.width)) for part in qkv.split(a.rows, -1))
            if rotary_pos_emb is not None:
                sequence = 1 if self.batch_first else 0
                q, k = (_rotated(part.movedim(sequence, 2), rotary_pos_emb).movedim(2, sequence) for part in (q, k))
            o = a.core_attention(q, k, v)
        # The bias is added to whole sums, as below.
        o = scatter(a.proj(o, first, with_bias=False))
        if a.proj.bias is not None:
            o = o + a.proj.bias.to(o.dtype)
        x = x + nn.functional.dropout(o, self.hidden_dropout)
        return x + nn.functional.dropout(self.layernorm_mlp(x, first, gather, scatter), self.hidden_dropout)


def _rotated(x, angles):
    """x: [..., sequence, width]. angles: [positions, 1, 1, width]; the halves of a head are the pairs."""
    angles = angles[: x.shape[2], 0, 0]
    first, second = x.float().chunk(2, -1)
    return (x.float() * angles.cos() + torch.cat((-second, first), -1) * angles.sin()).to(x.dtype)


def get_cudnn_version():
    return (9, 10, 2)
