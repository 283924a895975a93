"""Floors of a GPU: measured in half a minute, beaten by nothing, and between half and all of a step."""

import json
import subprocess
import sys

import pytest
from gpu.this_gpu import needs_fp8, needs_gpu

pytestmark = [pytest.mark.gpu, needs_gpu, needs_fp8, pytest.mark.timeout(900)]

WORK = {
    "vit-huge": ("--workload", "vit-huge", "--batch-size", "64", "--data", "device"),
    "llm-1b": ("--workload", "llm-1b", "--batch-size", "4"),
}
LONGEST_S = 30.0


@pytest.fixture(scope="module", params=WORK)
def folder(request, tmp_path_factory):
    """Records of three modes of a workload, whole steps as CUDA graphs."""
    pytest.importorskip("transformer_engine.pytorch")
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "fp8bench", "run", "--floor", "--gpus", "1", "--rounds", "1", "--allow-busy"]
    command += ["--quiet", "--results-dir", str(folder), "--min-time", "0", "--steps", "30", *WORK[request.param]]
    modes = [word for mode in ("te-fp8", "te-bf16", "baseline-bf16") for word in ("--mode", mode)]
    subprocess.run([*command, *modes], check=True, timeout=880)
    return folder


def test_ceilings_are_those_of_a_gpu_and_measured_in_half_a_minute(folder):
    first, *others = sorted(
        (json.loads(path.read_text()) for path in folder.rglob("*.json") if "samples" not in path.name),
        key=lambda record: record["created_utc"],
    )
    found = first["ceilings"]
    assert [other["ceilings"] for other in others] == [found, found]
    assert 1.3 < found["gemms_16_s"] / found["gemms_fp8_s"] < 2.2
    assert 1.5e12 < found["bytes_per_s"] < 5e12
    assert found["spread"] < 0.05
    assert first["phases_s"]["prepare"] < LONGEST_S + others[0]["phases_s"]["prepare"] + 15


@pytest.mark.parametrize("mode", ["te-fp8", "te-bf16", "baseline-bf16"])
def test_floors_add_up_to_half_to_all_of_a_step_and_are_not_beaten(folder, mode):
    command = [sys.executable, "-m", "fp8bench", "explain", mode, "--floor", "--results-dir", str(folder)]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "please report it" not in done.stderr
    assert 1.0 < json.loads(done.stdout)["left_at_most"] <= 2.0
