"""Two torchruns on one host with two GPUs are two nodes of one GPU each, which NCCL joins: what gloo cannot show is
that a rank in an NCCL kernel never hears of a node that is gone.
"""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from gpu.this_gpu import needs_two_gpus
from kept import documents

from fp8bench.launch.signals import descendants, process, processes

pytestmark = [pytest.mark.gpu, needs_two_gpus, pytest.mark.timeout(900)]

WORK = ("--workload", "vit-huge", "--batch-size", "16", "--data", "device", "--warmup", "5", "--min-time", "0")


@pytest.fixture
def nodes(tmp_path):
    """Starts both with these flags; each shows one GPU, and writes to a log of its own."""
    started = []

    def start(*flags):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        for node in (0, 1):
            place = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"]
            place += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            run = ["-m", "fp8bench", "run", *WORK, "--results-dir", str(tmp_path / "results"), "--allow-busy", *flags]
            with (tmp_path / f"log-{node}").open("w") as log:
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "torch.distributed.run", *place, *run],
                        env={**os.environ, "CUDA_VISIBLE_DEVICES": str(node)},
                        stdout=log,
                        stderr=log,
                    )
                )
        return started

    yield start
    for one in started:
        one.kill()
        one.wait()


def records(tmp_path):
    return documents(tmp_path, "results/*/*.json")


def test_two_modes_and_two_rounds_over_nccl_in_one_call(nodes, tmp_path):
    both = nodes("--mode", "baseline-bf16", "--mode", "baseline-fp32", "--rounds", "2", "--steps", "20")
    codes = [one.wait(800) for one in both]
    assert codes == [0, 0], (tmp_path / "log-0").read_text()
    found = records(tmp_path)
    assert [(record["config"]["mode"], record["session"]["round"]) for record in found] == [
        ("baseline-bf16", 1),
        ("baseline-fp32", 1),
        ("baseline-fp32", 2),
        ("baseline-bf16", 2),
    ]
    for record in found:
        assert (record["status"], record["config"]["nodes"], record["config"]["world_size"]) == ("ok", 2, 2)
        assert record["profile"]["nccl_s"] > 0
        assert {telemetry["rank"] for telemetry in record["telemetry"]} == {0, 1}
        names = {node["environment"]["device_name"] for node in record["environment"]["nodes"]}
        assert names == {record["environment"]["device_name"]}


def test_a_node_that_is_killed_ends_ranks_that_wait_in_nccl_within_a_minute(nodes, tmp_path):
    first, second = nodes("--mode", "baseline-bf16", "--rounds", "2", "--steps", "100000")
    log = tmp_path / "log-0"
    deadline = time.monotonic() + 400
    while ": timing," not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    time.sleep(3)
    ours = [one.pid for one in descendants(first.pid, processes())]
    began = time.monotonic()
    for one in descendants(second.pid, processes()):
        os.kill(one.pid, signal.SIGKILL)
    second.kill()
    assert first.wait(90) == 1
    assert time.monotonic() - began < 60
    assert [pid for pid in ours if process(pid) is not None] == []
    [record] = records(tmp_path)
    assert (record["status"], record["cause"]) == ("failed", "host-death")
    assert record["reason"].startswith("node 1 with rank 1 gave no sign of life for 1")
    assert record["reason"].endswith("in the phase 'timing'")
