"""Ranks that were started ahead hold nothing of a GPU while they wait, and the run that they wait for begins sooner."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from gpu.this_gpu import needs_gpu

from fp8bench.launch.processes.start import Ahead

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def gpus_open(pid):
    """Device files of GPUs that a process has open: one with a CUDA context has."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return [link for link in links if re.fullmatch(r"/dev/nvidia\d+", link)]


def cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def rest(pid, patience_s=120, quiet_s=3):
    """Wait until a process that has mapped torch's library has done nothing for a while: its imports are done."""
    deadline, since, before = time.monotonic() + patience_s, time.monotonic(), -1
    while time.monotonic() - since < quiet_s or "libtorch_cuda" not in Path(f"/proc/{pid}/maps").read_text():
        assert time.monotonic() < deadline
        if (now := cpu_ticks(pid)) != before:
            since, before = time.monotonic(), now
        time.sleep(0.2)


@needs_gpu
def test_ranks_that_wait_have_no_gpu_open():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    assert gpus_open(os.getpid())
    ahead = Ahead()
    try:
        ahead.expect(range(1), ["timm"])
        ahead.look("proving")
        [(pid, _)] = ahead.identities()
        rest(pid)
        assert gpus_open(pid) == []
    finally:
        ahead.close()


@needs_gpu
def test_the_second_run_of_a_session_begins_sooner(tmp_path):
    flags = (
        "--mode",
        "baseline-bf16",
        "--workload",
        "vit-huge",
        "--batch-size",
        "16",
        "--compile",
        "off",
        "--gpus",
        "1",
    )
    command = [sys.executable, "-m", "fp8bench", "run", *flags, "--rounds", "2", "--allow-busy", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [record["status"] for record in json.loads(done.stdout)] == ["ok", "ok"]
    first, second = map(int, re.findall(r"after (\d+) s: proving", done.stderr))
    # Of 9 s and more, what is left is the start of CUDA and NCCL.
    assert second <= first - 4
