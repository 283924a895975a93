"""The benchmark of what measuring costs runs, and prints its ratio; what that is, an idle machine may say."""

import re
from pathlib import Path

import fork_server
import pytest
from cli.calling import LIMIT_S, environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RATIO = r"([\d.]+) of the bare loop \(([\d.]+) to ([\d.]+)\)"


@pytest.mark.thorough
def test_it_times_the_tools_loop_against_a_bare_one_and_prints_their_ratio(tmp_path):
    few = ("--pairs", "8", "--steps", "1", "--warmup", "1", "--batch-size", "2")
    code, printed, errors = fork_server.called(
        ["--mode", "baseline-bf16", *few], tmp_path, environment(), LIMIT_S, [str(ROOT / "benchmarks" / "overhead.py")]
    )
    (line,) = printed.splitlines()
    found = re.match(rf"baseline-bf16: {RATIO}, 8 pairs of 1 steps, batch 2, a bare step [\d.]+ ms$", line)
    assert found, printed + errors
    value, low, high = map(float, found.groups())
    assert low <= value <= high
    assert code in (0, 1)
