"""What only a GPU can show of the evidence: kernels by name, telemetry, energy, the split of a step, and the doctor."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from gpu.this_gpu import ON_GPU

pytestmark = ON_GPU


def fp8bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "fp8bench", *arguments], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module", params=["off", "on"], ids=["launched from Python", "replayed"])
def measured(request, tmp_path_factory):
    """(records of te-fp8 and of the eager baseline, their folder)."""
    pytest.importorskip("transformer_engine.pytorch")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    folder = tmp_path_factory.mktemp("results")
    done = fp8bench(
        "run", "--json", "--gpus", "1", "--rounds", "1", "--allow-busy", "--compile", "off",
        *("--cuda-graphs", request.param),
        *("--results-dir", str(folder)),
        *("--mode", "te-fp8", "--mode", "baseline-bf16"),
        *("--workload", "vit-huge", "--batch-size", "16", "--data", "device"),
        *("--warmup", "5", "--steps", "40", "--min-time", "0"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_fp8_matrix_products_are_seen_in_the_fp8_mode_and_in_no_other(measured):
    [fp8, baseline], _ = measured
    assert (fp8["evidence"]["fp8"], fp8["evidence"]["fp8_kernels"]) == (True, True)
    assert (baseline["evidence"]["fp8"], baseline["evidence"]["fp8_kernels"]) == (False, False)
    for record in (fp8, baseline):
        profile = record["profile"]
        assert profile["device"] == "cuda"
        assert sum(profile["by_category"].values()) == pytest.approx(profile["busy_s"])
        assert profile["by_category"]["attention"] > 0
        assert profile["by_category"]["optimizer"] > 0
        assert profile["by_category"].get("other", 0) < 0.02 * profile["busy_s"]
        assert record["evidence"]["warnings"] == []


def test_transformer_engine_says_which_attention_it_took(measured):
    [fp8, _], _ = measured
    said = fp8["evidence"]["details"]["attention_choice"]
    assert any(line.startswith("Selected backend") for line in said)


def test_the_gpu_is_watched_while_steps_are_timed(measured):
    for record in measured[0]:
        [telemetry] = record["telemetry"]
        assert telemetry["warning"] is None
        assert telemetry["power_limit_w"] > 0
        assert len(telemetry["series"]["at_s"]) >= 5
        assert any(clock for clock in telemetry["series"]["sm_clock_mhz"])
        assert record["summary"]["joules_per_unit"] > 0
        watts = telemetry["energy_j"] / telemetry["timed_s"]
        assert 50 < watts < 1.1 * telemetry["power_limit_w"]


def test_a_step_splits_into_forward_backward_and_optimizer(measured):
    for record in measured[0]:
        samples, summary = record["samples"][0], record["summary"]
        assert samples["recompilations"] == samples["allocator_retries"] == 0
        if record["evidence"]["graph"]["enabled"]:
            # Of steps that were replayed after the timed ones, since an event inside a graph is read once a replay.
            parts = summary["forward_s"] + summary["backward_s"] + summary["optimizer_s"]
            assert parts == pytest.approx(summary["step_time_s"], rel=0.05)
        else:
            parts = zip(samples["forward_s"], samples["backward_s"], samples["optimizer_s"], strict=True)
            assert [sum(part) for part in parts] == pytest.approx(samples["step_s"], rel=1e-3)


def test_explain_answers_in_one_sentence_and_draws(measured, tmp_path):
    picture = tmp_path / "steps.png"
    done = fp8bench(
        "explain", "te-fp8", "baseline-bf16", "--results-dir", str(measured[1]), "--format", "json",
        "--plot", str(picture),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert explained["sentence"].startswith("te-fp8:delayed")
    assert [mode["label"].split("/")[0] for mode in explained["modes"]] == ["te-fp8:delayed", "baseline-bf16"]
    assert picture.stat().st_size > 10_000


def test_the_doctor_looks_at_this_machine_and_gives_nobody_away():
    done = fp8bench("doctor", "--json")
    assert done.returncode in (0, 3), done.stderr
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert {finding["status"] for finding in findings.values()} <= {"ok", "warning", "problem", "unknown"}
    assert all(f["remedy"] for f in findings.values() if f["status"] in ("warning", "problem"))
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    for secret in (socket.gethostname(), uuid, os.path.expanduser("~") + "/"):
        assert secret not in done.stdout
