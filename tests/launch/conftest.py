"""How patient a test of processes is to be."""

import subprocess
import sys
import time

import pytest

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
