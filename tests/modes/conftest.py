"""Transformer Engine's place, taken by a stand-in."""

import sys
import types

import pytest
from modes import te_fp8_stand_in, te_stand_in


@pytest.fixture
def stand_in(monkeypatch):
    package = types.ModuleType("transformer_engine")
    package.pytorch = te_stand_in
    monkeypatch.setitem(sys.modules, "transformer_engine", package)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", te_stand_in)
    return te_stand_in


@pytest.fixture
def fp8_stand_in(stand_in, monkeypatch):
    """The same with fp8."""
    te_fp8_stand_in.installed(monkeypatch)
    return stand_in
