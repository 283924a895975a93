"""What a hasty conversion does wrong: forward passes of a module that compute something else (each is called with the
module, what it computed before, and its arguments), and functions that plant one fault in a converted model.
"""

from functools import partial
from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional as F

from fp8bench.worker import parity


def verdict(base, plant, workload, earlier=None):
    """What the gate says of a mode, made by `base`, with a fault in the model that it converts."""

    class Planted(base):
        def convert(self, model):
            model = super().convert(model)
            plant(model)
            return model

    return parity.prove(Planted(), workload, 0, torch.device("cpu"), earlier=earlier).parity


def refusal(base, plant, workload, earlier=None):
    found = verdict(base, plant, workload, earlier)
    assert not found.passed
    return found.reason


def replaced(name, forward):
    def plant(model):
        module = model.get_submodule(name)
        module.forward = partial(forward, module, module.forward)

    return plant


def everywhere(blocks, forward):
    def plant(model):
        for name, _ in model.get_submodule(blocks).named_children():
            replaced(f"{blocks}.{name}", forward)(model)

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
    return lambda model: nn.init.constant_(model.get_parameter(name), value)


def output(change):
    return lambda _module, before, *args, **kwargs: change(before(*args, **kwargs))


@torch.no_grad()
def own_weights(model):
    for parameter in model.blocks.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.2)


def stale(name, at_once=False):
    """Compute with a copy of the weight that was made at the first pass, or at conversion."""

    def forward(layer, _before, x):
        held = layer.__dict__.setdefault("held", layer.weight.detach().clone())
        # Its gradient goes to the weight all the same.
        return F.linear(x, layer.weight + (held - layer.weight).detach(), layer.bias)

    def plant(model):
        replaced(name, forward)(model)
        layer = model.get_submodule(name)
        if at_once:
            layer.held = layer.weight.detach().clone()

    return plant


class Scaled(torch.autograd.Function):
    """Lets a tensor through, and a multiple of its gradient back."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


def identity(_module, _before, x, *_args, **_kwargs):
    return x


def gradient_times(factor):
    return output(lambda y: Scaled.apply(y, factor))


def sees_the_next(_module, before, x, **rest):
    """A little of the next token is mixed in, which is the target."""
    return before(x + 1e-3 * x.roll(-1, 1), **rest)


def across_the_batch(_module, before, x):
    """Takes [batch, tokens, width] for [tokens, batch, width]: attends to the same token of the other images."""
    return before(x.transpose(0, 1)).transpose(0, 1)


def across_the_samples(_module, before, x, position_embeddings=None, **rest):
    at_start = tuple(part[:, : x.shape[0]] for part in position_embeddings)
    return before(x.transpose(0, 1), position_embeddings=at_start, **rest).transpose(0, 1)


def causal(block, _before, x):
    attn = block.attn
    batch, tokens, width = x.shape
    qkv = attn.qkv(block.norm1(x)).reshape(batch, tokens, 3, attn.num_heads, attn.head_dim)
    out = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True)
    x = x + attn.proj(out.transpose(1, 2).reshape(batch, tokens, width))
    return x + block.mlp(block.norm2(x))


def no_rotation(_module, before, x, position_embeddings=None, **rest):
    cos, sin = position_embeddings
    return before(x, position_embeddings=(torch.ones_like(cos), torch.zeros_like(sin)), **rest)


def called(layer, x, rotary, **more):
    return layer(x, position_embeddings=rotary, **more)


def llama_with(order=MappingProxyType({}), at_7=called, head=None):
    """A Llama with another forward pass. order: the layers called at a place. at_7: calls layer 7, given it, its
    input and the rotary angles. head: what follows, given the model, its input and the targets.
    """

    def plant(model):
        def forward(tokens, targets=None):
            x = model.model.embed_tokens(tokens)
            rotary = model.model.rotary_emb(x, torch.arange(tokens.shape[1]).unsqueeze(0))
            for place in range(len(model.model.layers)):
                for one in order.get(place, (place,)):
                    x = (at_7 if one == 7 else called)(model.model.layers[one], x, rotary)
            return head(model, x, targets) if head else model.lm_head(model.model.norm(x), targets)

        model.forward = forward

    return plant


def parallel(model):
    """Layers 7 and 8 get the same input."""

    def both(layer, x, rotary):
        return called(layer, x, rotary) + called(model.model.layers[8], x, rotary) - x

    llama_with({8: ()}, both)(model)


def scaled_loss(model, x, targets):
    return (1 if targets is None else 2) * model.lm_head(model.model.norm(x), targets)


def with_penalty(model, x, targets):
    weight = model.model.layers[7].mlp.up_proj.weight
    return model.lm_head(model.model.norm(x), targets) + (0 if targets is None else 1e-4 * weight.square().sum())


def loss_of_others(model, x, targets):
    """The loss is not of the logits, but of those of the tokens before."""
    return model.lm_head(model.model.norm(x), None if targets is None else targets.roll(1, 1))


def gate_and_up_exchanged(model, numbers=(7,)):
    for number in numbers:
        mlp = model.model.layers[number].mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x))


def not_causal(model, numbers=(7,)):
    for number in numbers:
        model.model.layers[number].self_attn.is_causal = False


def within(length, of, change):
    """Modules of a name are right in the first tokens of a sample alone."""

    def forward(_module, before, *args):
        found = before(*args)
        either = found if isinstance(found, tuple) else (found,)
        changed = tuple(torch.cat([one[:, :length], change(one[:, length:])], 1) for one in either)
        return changed if isinstance(found, tuple) else changed[0]

    def plant(model):
        for name in [name for name, _ in model.named_modules() if name.endswith(of)]:
            replaced(name, forward)(model)

    return plant


def window_of(length):
    """No token sees one that is so many before it or more."""

    def forward(_module, before, *args, **rest):
        tokens = (args or (rest["hidden_states"],))[0].shape[1]
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril().triu(1 - length)
        return before(*args, **{**rest, "attention_mask": seen[None, None]})

    return lambda model: [
        replaced(f"model.layers.{number}.self_attn", forward)(model) for number in range(len(model.model.layers))
    ]


def first_rows_untrained(gradient):
    """The rows of queries get no gradient."""
    changed = gradient.clone()
    changed[: len(gradient) // 3] = 0
    return changed


def positions_untrained(model):
    before = model._pos_embed
    model._pos_embed = lambda x: before(x) + (model.pos_embed.detach() - model.pos_embed)


def without_class_token(model):
    """Zeros stand for it."""
    model._pos_embed = lambda x: torch.cat([x.new_zeros(len(x), 1, x.shape[2]), x], 1) + model.pos_embed


def fresh_norms(model):
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            model.set_submodule(name, nn.LayerNorm(module.normalized_shape, module.eps))
