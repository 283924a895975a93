"""What tests on a GPU share: ranks that settle how their steps are executed, and the program itself."""

import json
import subprocess
import sys

import pytest
from gpu import gpu_ranks
from torch import multiprocessing

from fp8bench.worker import memory


@pytest.fixture
def te():
    """Transformer Engine; without it the test is skipped."""
    return pytest.importorskip("transformer_engine.pytorch")


@pytest.fixture
def settled(tmp_path):
    """What each rank found, by rank (see `gpu_ranks.settle_here`). label: MODE[:RECIPE]."""

    def run(label="baseline-bf16", launch="Replay", gpus=1, waits=None, spare=memory.SPARE, layers=None, **values):
        if label.startswith("te"):
            pytest.importorskip("transformer_engine.pytorch")
        mode, _, recipe = label.partition(":")
        values = {"mode": mode, "recipe": recipe or None, "world_size": gpus, "cuda_graphs": "on", **values}
        asked = (str(tmp_path), values, launch, waits, spare, layers)
        multiprocessing.start_processes(gpu_ranks.settle_here, args=asked, nprocs=gpus, start_method="spawn")
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(gpus)]

    return run


@pytest.fixture
def run(tmp_path):
    """`fp8bench run` on one GPU with these flags; returns (exit code, records, standard error)."""

    def call(*flags):
        command = [sys.executable, "-m", "fp8bench", "run", "--json", "--results-dir", str(tmp_path), "--gpus", "1"]
        # Several tests may share a GPU: nothing here is a measurement.
        command += ["--rounds", "1", "--allow-busy", "--quiet", "--min-time", "0"]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        records = json.loads(done.stdout) if done.stdout.startswith("[") else []
        return done.returncode, records, done.stderr

    return call
