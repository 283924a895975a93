"""Adds fp8 to the stand-in for Transformer Engine: an autocast that nests, modules that note whether they ran in fp8
and under which recipe, and the recipes with their fields and defaults as release 2.20 has them. Nothing is rounded.
"""

import types
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum

from modes import te_stand_in

state = types.SimpleNamespace(enabled=False, recipe=None, calls=[], depth=0, rolls=0, again=[])


class Format(Enum):
    E4M3 = 1
    E5M2 = 2
    HYBRID = 3


@dataclass
class DelayedScaling:
    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str = "max"
    fp8_dpa: bool = False


@dataclass
class Float8CurrentScaling:
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False


@dataclass
class Float8BlockScaling:
    fp8_format: Format = Format.E4M3


@dataclass
class MXFP8BlockScaling:
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False


@contextmanager
def autocast(enabled=True, recipe=None, amax_reduction_group=None):
    """The end of an outermost one rolls all amax histories, if it was enabled."""
    before = state.enabled, state.recipe
    state.enabled, state.recipe = enabled, recipe
    state.depth += 1
    try:
        yield
    finally:
        state.depth -= 1
        state.rolls += enabled and state.depth == 0
        state.enabled, state.recipe = before


def checkpoint(function, *args, use_reentrant, context_fn=lambda: (nullcontext(), nullcontext()), **kwargs):
    """The second pass, which backward would run, waits in `state.again`."""
    assert not use_reentrant
    first, second = context_fn()
    enabled, recipe = state.enabled, state.recipe

    def again():
        with second, autocast(enabled=enabled, recipe=recipe):
            function(*args, **kwargs)

    state.again.append(again)
    with first:
        return function(*args, **kwargs)


class _InFP8:
    """As Transformer Engine's base class: what it ran under is on the module after its forward pass."""

    fp8_initialized = False

    def forward(self, *args, **kwargs):
        self.fp8_initialized = state.enabled
        if state.enabled:
            self.fp8_meta = {"recipe": state.recipe}
        return super().forward(*args, **kwargs)


def _in_fp8(plain):
    return type(plain.__name__, (_InFP8, plain), {"__module__": "transformer_engine.stand_in"})


def installed(monkeypatch):
    """Take the place of the modules in te_stand_in, and of transformer_engine.common.recipe."""
    import sys

    for name in ("Linear", "LayerNormLinear", "LayerNormMLP"):
        monkeypatch.setattr(te_stand_in, name, _in_fp8(getattr(te_stand_in, name)))
    monkeypatch.setattr(te_stand_in, "autocast", autocast, raising=False)
    monkeypatch.setattr(te_stand_in, "checkpoint", checkpoint, raising=False)
    state.rolls, state.again = 0, []
    common, recipe = types.ModuleType("transformer_engine.common"), types.ModuleType("transformer_engine.common.recipe")
    for one in (Format, DelayedScaling, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling):
        setattr(recipe, one.__name__, one)
    common.recipe = recipe
    monkeypatch.setitem(sys.modules, "transformer_engine.common", common)
    monkeypatch.setitem(sys.modules, "transformer_engine.common.recipe", recipe)
