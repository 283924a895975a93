"""What a hasty conversion does wrong: blocks that compute something else than the one they wrap, and functions that
plant one fault in a converted model.
"""

import copy
import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


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


class Halved(torch.autograd.Function):
    """Lets a tensor through, and a multiple of its gradient back."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


def replaced(name, forward):
    def plant(model):
        module = model.get_submodule(name)
        module.forward = partial(forward, module, module.forward)

    return plant


def frozen(choose):
    def plant(model):
        for name in choose([name for name, _ in model.named_parameters()]):
            model.get_parameter(name).requires_grad_(False)

    return plant


def gradients(of, change):
    def plant(model):
        for name, weight in model.named_parameters():
            if of in name:
                weight.register_hook(change)

    return plant


def weight_detached(of):
    def plant(model):
        for name, layer in model.named_modules():
            if of in name and isinstance(layer, nn.Linear):
                layer.forward = lambda x, layer=layer: F.linear(x, layer.weight.detach(), layer.bias)

    return plant


def filled(name, value):
    def plant(model):
        with torch.no_grad():
            model.get_parameter(name).fill_(value)

    return plant


def stale(name):
    def forward(layer, _before, x):
        held = layer.__dict__.setdefault("held", layer.weight.detach().clone())
        # Its gradient goes to the weight all the same.
        return F.linear(x, layer.weight + (held - layer.weight).detach(), layer.bias)

    return replaced(name, forward)


def stale_at_once(name):
    def plant(model):
        stale(name)(model)
        layer = model.get_submodule(name)
        layer.held = layer.weight.detach().clone()

    return plant


def identity(_module, _before, x, *_args, **_kwargs):
    return x


def zeros(_module, _before, x, *_args, **_kwargs):
    return torch.zeros_like(x)


def no_mlp(layer, _before, x):
    return x.new_zeros(*x.shape[:-1], layer.out_features)


def no_attention(_module, _before, hidden_states, **_kwargs):
    return torch.zeros_like(hidden_states), None


def dropout(_module, before, *args, **kwargs):
    return F.dropout(before(*args, **kwargs), 0.1)


def gradient_times(factor):
    def forward(_module, before, *args, **kwargs):
        return Halved.apply(before(*args, **kwargs), factor)

    return forward


def detached_output(_module, before, *args, **kwargs):
    return before(*args, **kwargs).detach()


def llama_with(around, head=None):
    def plant(model):
        def forward(tokens, targets=None):
            x = model.model.embed_tokens(tokens)
            positions = torch.arange(tokens.shape[1]).unsqueeze(0)
            rotary = model.model.rotary_emb(x, positions)
            x = around(x, model.model.layers, rotary)
            return (head or (lambda model, x, targets: model.lm_head(model.model.norm(x), targets)))(model, x, targets)

        model.forward = forward

    return plant


def in_order(*order, number=18):
    changed = dict(order)

    def around(x, layers, rotary):
        for place in range(number):
            for one in changed.get(place, (place,)):
                x = layers[one](x, position_embeddings=rotary)
        return x

    return around


def parallel(x, layers, rotary):
    for place, layer in enumerate(layers):
        if place == 8:
            continue
        y = layer(x, position_embeddings=rotary)
        x = y + layers[8](x, position_embeddings=rotary) - x if place == 7 else y
    return x


def without_gradient(x, layers, rotary):
    for place, layer in enumerate(layers):
        with torch.set_grad_enabled(place != 7 and torch.is_grad_enabled()):
            x = layer(x, position_embeddings=rotary)
    return x


def detached_between(x, layers, rotary):
    for place, layer in enumerate(layers):
        x = layer(x.detach() if place == 7 else x, position_embeddings=rotary)
    return x


def detached_after_all(x, layers, rotary):
    for place, layer in enumerate(layers):
        y = layer(x, position_embeddings=rotary)
        x = x + (y - x).detach() if place == 7 else y
    return x


def turned_for_one(x, layers, rotary):
    for place, layer in enumerate(layers):
        x = layer(x, position_embeddings=tuple(one.roll(1, 1) for one in rotary) if place == 7 else rotary)
    return x


def masked_for_one(x, layers, rotary):
    alone = torch.eye(x.shape[1], dtype=torch.bool)[None, None]
    for place, layer in enumerate(layers):
        x = layer(x, position_embeddings=rotary, **({"attention_mask": alone} if place == 7 else {}))
    return x


def scaled_between(x, layers, rotary):
    for place, layer in enumerate(layers):
        x = layer(Halved.apply(x, 2.0) if place == 7 else x, position_embeddings=rotary)
    return x


def scaled_loss(model, x, targets):
    found = model.lm_head(model.model.norm(x), targets)
    return found if targets is None else 2 * found


def loss_of_others(model, x, targets):
    return model.lm_head(model.model.norm(x), None if targets is None else targets.roll(1, 1))


def with_penalty(model, x, targets):
    found = model.lm_head(model.model.norm(x), targets)
    return found if targets is None else found + 1e-4 * model.model.layers[7].mlp.up_proj.weight.square().sum()


def tied_blocks(model):
    model.model.layers[8] = model.model.layers[7]


def untied_names(model):
    model.model.layers[8].forward = model.model.layers[7].forward


def gate_and_up_exchanged(model, number=7):
    mlp = model.model.layers[number].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x))


def not_causal(model):
    model.model.layers[7].self_attn.is_causal = False


def across_the_samples(_module, before, x, position_embeddings=None, **rest):
    at_start = tuple(part[:, : x.shape[0]] for part in position_embeddings)
    return before(x.transpose(0, 1), position_embeddings=at_start, **rest).transpose(0, 1)


def no_gain(norm, _before, x):
    return F.rms_norm(x, x.shape[-1:], None, norm.variance_epsilon)


def no_rotation(_module, before, x, position_embeddings=None, **rest):
    cos, sin = position_embeddings
    return before(x, position_embeddings=(torch.ones_like(cos), torch.zeros_like(sin)), **rest)


def first_rows_untrained(gradient):
    changed = gradient.clone()
    changed[: len(gradient) // 3] = 0
    return changed


def layer_scale(_module, before, x):
    return x + 1e-5 * (before(x) - x)


def causal_in_one(block, _before, x):
    return Causal(block)(x)


def across_in_one(_module, before, x):
    return before(x.transpose(0, 1)).transpose(0, 1)


def without_positions(model):
    model._pos_embed = lambda x: torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)


def positions_untrained(model):
    before = model._pos_embed
    model._pos_embed = lambda x: before(x) + (model.pos_embed.detach() - model.pos_embed)


def without_class_token(model):
    model._pos_embed = lambda x: torch.cat([x.new_zeros(len(x), 1, x.shape[2]), x], 1) + model.pos_embed


def without_bias(layer, _before, x):
    return F.linear(x, layer.weight)


def without_shift(norm, _before, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, None, norm.eps)


def fresh_norms(model):
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            model.set_submodule(name, nn.LayerNorm(module.normalized_shape, module.eps))


def wider_epsilon(norm, _before, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, math.e)
