"""Adds fp8 to the stand-in for Transformer Engine: an autocast that nests, modules that note whether they ran in fp8
and under which recipe, and the recipes with their fields and defaults as release 2.20 has them. Nothing is rounded.
"""

import types
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from modes import te_stand_in

state = types.SimpleNamespace(enabled=False, recipe=None, calls=[])


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
    before = state.enabled, state.recipe
    state.enabled, state.recipe = enabled, recipe
    try:
        yield
    finally:
        state.enabled, state.recipe = before


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
    common, recipe = types.ModuleType("transformer_engine.common"), types.ModuleType("transformer_engine.common.recipe")
    for one in (Format, DelayedScaling, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling):
        setattr(recipe, one.__name__, one)
    common.recipe = recipe
    monkeypatch.setitem(sys.modules, "transformer_engine.common", common)
    monkeypatch.setitem(sys.modules, "transformer_engine.common.recipe", recipe)
