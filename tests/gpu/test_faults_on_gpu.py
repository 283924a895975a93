"""Faults that only GPUs have: a rank that fails while a graph is captured, one that others wait for inside an NCCL
kernel, and memory of a GPU that is really exhausted. The suite on CPUs is tests/faults.
"""

import os
import subprocess
import sys
import time

import pytest
import torch
from faults.conftest import ENTRY_POINTS, PLUGINS
from faults.faulty_runs import at_work_in
from gpu.this_gpu import needs_gpu, needs_two_gpus
from kept import documents, installed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

WORDS = ("run", "--mode", "faulty", "--workload", "vit-micro", "--batch-size", "16", "--rounds", "1", "--min-time", "0")
PHASES = ("proving", "warming-up", "capturing", "comparing", "timing", "profiling", "done")
SOON_S = 90
"""Of which 60 are imports and the start of CUDA and NCCL."""


@pytest.fixture
def run(tmp_path):
    """A run with this fault; afterwards no process and none of a GPU's memory is held by it."""
    site = installed(tmp_path / "site", "faulty_plugins", PLUGINS.read_text(), ENTRY_POINTS)

    def running(fault, gpus, *flags):
        free = [torch.cuda.mem_get_info(gpu)[0] for gpu in range(gpus)]
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": path, "FAULT": fault}
        command = [sys.executable, "-m", "fp8bench", *WORDS, "--gpus", str(gpus), "--allow-busy", *flags]
        began = time.monotonic()
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        assert "Traceback" not in done.stderr
        assert at_work_in(tmp_path) == []
        assert [torch.cuda.mem_get_info(gpu)[0] for gpu in range(gpus)] >= [each - (64 << 20) for each in free]
        [record] = documents(tmp_path / "results")
        return done.returncode, record, seconds

    return running


@needs_gpu
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", ["killed", "raises"])
def test_a_rank_that_fails_in_a_phase_frees_its_gpu_and_is_named(run, kind, phase):
    code, record, seconds = run(f"{kind} {phase} 0", 1, "--cuda-graphs", "on")
    assert (code, record["status"]) == (5, "failed")
    assert record["reason"].startswith("rank 0 died: ")
    assert record["reason"].endswith(f"in the phase {phase.replace('-', ' ')!r}")
    assert seconds < SOON_S


@needs_two_gpus
@pytest.mark.parametrize("phase", ["proving", "capturing", "timing", "profiling"])
@pytest.mark.parametrize("kind", ["killed", "exits", "stops"])
def test_of_two_the_one_that_fails_is_named_though_the_other_waits_inside_a_kernel(run, kind, phase):
    limit = ("--timeout", "30") if kind == "stops" else ()
    code, record, seconds = run(f"{kind} {phase} 1", 2, *limit)
    assert (code, record["status"]) == (5, "failed")
    assert record["reason"].startswith("rank 1 ")
    assert record["cause"] == {"killed": "host-death", "exits": "crash", "stops": "timeout"}[kind]
    assert seconds < 2 * SOON_S


@needs_gpu
def test_a_gpu_whose_memory_is_exhausted_is_a_failed_record_of_that_cause(run):
    code, record, _ = run("none none 0", 1, "--workload", "vit-huge", "--batch-size", "4096", "--data", "device")
    assert (code, record["status"], record["cause"]) == (5, "failed", "oom")


@needs_two_gpus
def test_the_rank_that_is_slower_is_a_mark_of_the_record(run):
    code, record, _ = run("slow timing 1", 2, "--cuda-graphs", "off", "--steps", "50")
    assert (code, record["status"]) == (0, "ok")
    assert any(flag.startswith("straggler: rank 1 ") for flag in record["summary"]["flags"])
