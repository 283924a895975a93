"""Stands in for Transformer Engine's delayed scaling on a CPU: a linear layer that casts to fp8 and multiplies in
float32, its fp8_meta, and an autocast that updates scales where Transformer Engine does.

It shows that what we read is there to be read, and read at the right moment. It proves nothing about Transformer Engine
itself; tests/gpu does that on a real one.
"""

import sys
from contextlib import contextmanager

import torch
from modes import te_stand_in
from modes.te_stand_in import TransformerLayer as TransformerLayer

from fp8bench.numerics.definitions import E4M3, E5M2
from fp8bench.numerics.scaling import scaled_cast

pytorch, common = sys.modules[__name__], te_stand_in
LAYERS = []
"""Every layer that ever ran, as Transformer Engine's global buffers have them."""


class State:
    """scale and amax_history [length, quantizers]; row 0 of the latter takes the amaxes of the step."""

    def __init__(self, length, quantizers):
        self.scale = torch.ones(quantizers)
        self.amax_history = torch.zeros(length, quantizers)

    def cast(self, values, place, to):
        self.amax_history[0, place] = values.abs().amax()
        return scaled_cast(values, self.scale[place], to).values

    def update(self, algo, largest):
        amax = self.amax_history.amax(0) if algo == "max" else self.amax_history[0].clone()
        known = self.amax_history[0] > 0
        rolled = torch.roll(self.amax_history, -1, 0)
        rolled[0] = 0
        self.amax_history.copy_(torch.where(known, rolled, self.amax_history))
        self.scale.copy_(torch.where(known, largest / amax, self.scale))


@contextmanager
def autocast(enabled=True, recipe=None, amax_reduction_group=None):
    """Sets the scales of the forward pass when it is left."""
    autocast.recipe = recipe if enabled else None
    try:
        yield
    finally:
        for layer in LAYERS if autocast.recipe is not None else ():
            layer.fp8_meta["scaling_fwd"].update(autocast.recipe.amax_compute_algo, 448.0)
        autocast.recipe = None


autocast.recipe = None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, layer):
        state = layer.fp8_meta["scaling_fwd"]
        x8, weight8 = state.cast(x.float(), 0, E4M3), state.cast(weight, 1, E4M3)
        ctx.save_for_backward(x8, weight8)
        ctx.layer, ctx.dtypes = layer, (x.dtype, weight.dtype)
        return (x8 @ weight8.t()).bfloat16()

    @staticmethod
    def backward(ctx, gradient):
        x8, weight8 = ctx.saved_tensors
        state = ctx.layer.fp8_meta["scaling_bwd"]
        gradient8 = state.cast(gradient.float(), 0, E5M2)
        state.update(ctx.layer.algo, 57344.0)
        return (gradient8 @ weight8).bfloat16().to(ctx.dtypes[0]), (gradient8.t() @ x8).bfloat16().float(), None


class Linear(te_stand_in.Linear):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.fp8_meta = {}

    def forward(self, x):
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if autocast.recipe is None:
            return super().forward(x.float()).to(x.dtype)
        if not self.fp8_meta:
            length, self.algo = autocast.recipe.amax_history_len, autocast.recipe.amax_compute_algo
            self.fp8_meta.update(scaling_fwd=State(length, 3), scaling_bwd=State(length, 2))
            LAYERS.append(self)
        return Product.apply(x, self.weight, self)


def install(monkeypatch):
    """Make it importable as Transformer Engine."""
    ours = dict.fromkeys(("transformer_engine", "transformer_engine.pytorch"), pytorch)
    for name, module in {**te_stand_in.MODULES, **ours}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(f"{__name__}.LAYERS", [])
