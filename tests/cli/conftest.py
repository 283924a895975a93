"""The program in an empty folder."""

import signal
from functools import partial

import pytest
from cli.calling import call

from fp8bench.launch.signals import SIGNALS


@pytest.fixture(autouse=True)
def handlers():
    """Where the program is called in this process, its handling of signals ends with the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fp8bench_in(tmp_path):
    """Run the program in an empty folder."""
    return partial(call, tmp_path)
