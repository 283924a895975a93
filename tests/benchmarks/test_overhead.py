"""The benchmark of what measuring costs runs, and prints its ratio; what that is, an idle machine may say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RATIO = r"([\d.]+) of the bare loop \(([\d.]+) to ([\d.]+)\)"


def test_it_times_the_tools_loop_against_a_bare_one_and_prints_their_ratio(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "overhead.py"), "--mode", "baseline-bf16"]
    done = subprocess.run(
        [*command, "--pairs", "8", "--steps", "1", "--warmup", "1", "--batch-size", "2"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    (line,) = done.stdout.splitlines()
    found = re.match(rf"baseline-bf16: {RATIO}, 8 pairs of 1 steps, batch 2, a bare step [\d.]+ ms$", line)

    assert found, done.stdout + done.stderr
    value, low, high = map(float, found.groups())
    assert low <= value <= high
    assert done.returncode in (0, 1)
