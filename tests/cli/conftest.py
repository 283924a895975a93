"""The program in an empty folder."""

from functools import partial

import pytest
from cli.calling import call


@pytest.fixture
def fp8bench_in(tmp_path):
    """Run the program in an empty folder."""
    return partial(call, tmp_path)
