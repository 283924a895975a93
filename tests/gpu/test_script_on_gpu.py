"""The training script of a measurement: its step takes as long, and its model is converted in the same way."""

import math
import re
import subprocess
import sys

import pytest
import torch
from gpu.this_gpu import needs_fp8, needs_te

from fp8bench.kinds.run.script import script
from fp8bench.records import results

pytestmark = [pytest.mark.gpu, needs_fp8, needs_te, pytest.mark.timeout(600)]

CASES = {"baseline-bf16": ("vit-huge", "64"), "te-fp8": ("vit-huge", "64"), "te-fp8, tokens": ("llm-1b", "4")}
FRESH = {"vit-huge": math.log(1000), "llm-1b": math.log(32_000)}
"""The loss of a model that has learned nothing."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Each case as one process measured it; each step is a CUDA graph."""
    found = {}
    for case, (workload, batch_size) in CASES.items():
        folder = tmp_path_factory.mktemp("measured")
        words = ["--workload", workload, "--batch-size", batch_size, "--mode", case.partition(",")[0]]
        command = [sys.executable, "-m", "fp8bench", "run", *words, "--gpus", "1", "--rounds", "1", "--data", "device"]
        subprocess.run([*command, "--results-dir", folder], check=True, timeout=280)
        [(found[case], _)] = results.read(folder, results.known_instances(folder))
    return found


@pytest.mark.parametrize("case", CASES)
def test_its_bare_step_takes_as_long_as_the_measured_one(case, measured, tmp_path):
    record, path = measured[case], tmp_path / "script.py"
    path.write_text(script(record))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, timeout=280)
    took_ms, loss = map(float, re.fullmatch(r"([\d.]+) ms a step, loss ([\d.]+)\n", done.stdout).groups())
    assert loss < 1 + FRESH[CASES[case][0]], "it has learned two batches, or at least does not diverge"
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
