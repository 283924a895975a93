"""Transformer Engine's place, taken by a stand-in."""

import sys

import pytest
from modes import te_stand_in


@pytest.fixture
def stand_in(monkeypatch):
    for name, module in te_stand_in.MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    te_stand_in.fp8.rolls, te_stand_in.fp8.again = 0, []
