"""How patient a test of processes is to be."""

import subprocess
import sys
import time

import pytest

from fp8bench.launch import place as placing

QUIET_S = 0.5
"""What the start of a rank takes on two quiet cores, torch apart."""


@pytest.fixture(scope="module")
def slowness():
    """How many times longer the start of a process takes now than on a quiet machine; at least 1. Limits in real time
    are multiplied by it.
    """
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import fp8bench.launch.processes.rank"], check=True)
    return max(1.0, (time.monotonic() - began) / QUIET_S)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """The machine that runs the tests may set variables that made-up records lack."""
    monkeypatch.setattr(placing, "settings_here", lambda: {})
