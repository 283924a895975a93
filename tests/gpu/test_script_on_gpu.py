"""The training script of a measurement: its step takes as long, and its model is converted in the same way."""

import re
import subprocess
import sys

import pytest
import torch
from gpu.this_gpu import needs_fp8, needs_te

from fp8bench.kinds.run.script import script
from fp8bench.records import results

pytestmark = [pytest.mark.gpu, needs_fp8, needs_te, pytest.mark.timeout(600)]

MODES = ("baseline-bf16", "te-fp8")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """ViT-Huge at batch 64 in both modes, each step a CUDA graph; one process each."""
    folder = tmp_path_factory.mktemp("measured")
    words = [word for mode in MODES for word in ("--mode", mode)]
    command = [sys.executable, "-m", "fp8bench", "run", *words, "--gpus", "1", "--rounds", "1", "--batch-size", "64"]
    subprocess.run([*command, "--data", "device", "--results-dir", folder], check=True, timeout=280)
    found = results.read(folder, results.known_instances(folder))
    return {record.config.mode: record for record, _ in found}


@pytest.mark.parametrize("mode", MODES)
def test_its_bare_step_takes_as_long_as_the_measured_one(mode, measured, tmp_path):
    record, path = measured[mode], tmp_path / f"{mode}.py"
    path.write_text(script(record))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, timeout=280)
    took_ms, loss = map(float, re.fullmatch(r"([\d.]+) ms a step, loss ([\d.]+)\n", done.stdout).groups())
    assert loss < 8, "it has learned two batches, or at least does not diverge"
    # Processes of one mode differ by up to half a per cent; the clock's digits are 0.05 ms.
    assert took_ms == pytest.approx(record.step_times.mean_s * 1e3, rel=0.01)


def test_its_converted_model_gives_the_plain_models_loss_but_for_fp8(measured):
    own: dict = {}
    exec(script(measured["te-fp8"]).partition("optimizer = ")[0], own)
    torch.manual_seed(0)
    with own["DEVICE"]:
        plain = own["plain"]()
    inputs, targets = next(own["batches"]())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        wanted = own["loss_of"](plain, inputs, targets)
        with own["te"].autocast(enabled=True, recipe=own["RECIPE"]):
            found = own["loss_of"](own["model"], inputs, targets)
    assert found.item() == pytest.approx(wanted.item(), rel=0.02)
