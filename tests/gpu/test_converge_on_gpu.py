"""What only a GPU can show of trainings: a captured step begins at the same start and obeys the learning rate, fp8 runs
in fp8, ranks share a step, and a cut llm-1b is done in minutes.
"""

import json
import subprocess
import sys
import time

import pytest
from gpu.this_gpu import ON_GPU, needs_fp8, needs_two_gpus

pytestmark = ON_GPU

MICRO = ("--workload", "llm-micro", "--batch-size", "16", "--steps", "40", "--seeds", "1", "--learning-rate", "0.002")
CUT = ("--workload", "llm-1b", "--size", "num_hidden_layers=4", "--steps", "300", "--seeds", "1")
ALIKE = 0.05
"""Nats by which two trainings in one mode may differ after so few steps, since sums are made in another order."""


@pytest.fixture
def trained(tmp_path):
    """The report of a call, and how long it took, seconds."""

    def run(*words, modes=("baseline-bf16", "te-fp8:delayed")):
        if any(mode.startswith("te") for mode in modes):
            pytest.importorskip("transformer_engine.pytorch")
        flags = [word for mode in modes for word in ("--mode", mode)]
        command = [sys.executable, "-m", "fp8bench", "converge", "--format", "json", "--allow-busy"]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--results-dir", str(tmp_path), *flags, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=850,
        )
        assert done.returncode == 0, done.stderr
        [report] = json.loads(done.stdout)
        return report, time.monotonic() - began

    return run


def losses(report, mode):
    [one] = [one for one in report["trainings"] if one["mode"] == mode]
    return one["curve"]["train_loss"]


def evidence(report, mode):
    return next(one["evidence"] for one in report["trainings"] if one["mode"] == mode)


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(("baseline-bf16", "te-fp8:delayed"), marks=needs_fp8),
        pytest.param(("baseline-bf16", "torchao-float8:tensorwise"), marks=needs_fp8),
        ("baseline-bf16", "baseline-fp32"),
    ],
    ids=lambda modes: modes[1],
)
def test_a_captured_training_is_the_one_launched_from_python(trained, modes):
    """The start is put back in place, the batches begin anew, and the rate rises inside the graph."""
    captured, _ = trained(*MICRO, "--gpus", "1", "--cuda-graphs", "on", modes=modes)
    plain, _ = trained(*MICRO, "--gpus", "1", "--cuda-graphs", "off", "--compile", "off", modes=modes)
    for mode in modes:
        assert evidence(captured, mode)["graph"]["enabled"]
        assert not evidence(plain, mode)["graph"]["enabled"]
        pairs = list(zip(losses(captured, mode), losses(plain, mode), strict=True))
        assert pairs[0][0] == pytest.approx(pairs[0][1], abs=0.01)
        assert max(abs(one - other) for one, other in pairs) < ALIKE
        assert pairs[-1][0] < pairs[0][0] - 1


@needs_fp8
def test_fp8_is_seen_in_the_fp8_mode_and_in_no_other(trained):
    report, _ = trained(*MICRO, "--gpus", "1", "--sequence-length", "128")
    assert evidence(report, "te-fp8:delayed")["fp8_kernels"]
    assert not evidence(report, "baseline-bf16")["fp8_kernels"]
    baseline, fp8 = report["rows"]
    assert baseline["step_time_s"] > 0
    assert abs(fp8["equal_steps"]["value"]) < 0.1


@needs_two_gpus
def test_two_ranks_train_as_one_with_twice_the_batch(trained):
    modes = ("baseline-bf16", "baseline-fp32")
    two, _ = trained(*MICRO, "--batch-size", "8", "--gpus", "2", modes=modes)
    one, _ = trained(*MICRO, "--gpus", "1", modes=modes)
    for mode in modes:
        assert evidence(two, mode)["join"] == "ddp"
        pairs = zip(losses(two, mode), losses(one, mode), strict=True)
        assert max(abs(mine - theirs) for mine, theirs in pairs) < ALIKE


@needs_fp8
def test_three_hundred_steps_a_mode_of_a_cut_llm_1b_take_less_than_five_minutes(trained):
    modes = ("baseline-bf16", "te-fp8:delayed", "torchao-float8:tensorwise")
    report, seconds = trained(*CUT, "--gpus", "1", modes=modes)
    assert seconds < 300
    for mode in modes:
        assert len(losses(report, mode)) == 300
        assert losses(report, mode)[-1] < 3.5
        assert evidence(report, mode)["graph"]["enabled"]
    assert all(not row["diverged"] for row in report["rows"])
    assert report["rows"][1]["time_to_same_loss"]["value"] < 0, "te-fp8 is faster"
