"""What only a GPU can show of execution: real captures, replays that are wrong in each way, and captures that fail."""

import math

import pytest
from gpu import gpu_ranks
from gpu.this_gpu import ON_GPU, needs_fp8, needs_te, needs_two_gpus

pytestmark = ON_GPU

MICRO = {"workload": "vit-micro", "batch_size": 16}
HUGE = {"workload": "vit-huge", "batch_size": 32}


@pytest.mark.parametrize(
    ("mode", "compile"),
    [
        ("baseline-bf16", "off"),
        ("baseline-bf16", "on"),
        ("baseline-bf16", "blocks"),
        pytest.param("te-bf16", "off", marks=needs_fp8),
        pytest.param("te-fp8:delayed", "off", marks=needs_fp8),
        pytest.param("te-fp8:current", "off", marks=needs_fp8),
        pytest.param("torchao-float8", "blocks", marks=needs_fp8),
    ],
)
def test_a_whole_step_is_captured_and_proved(mode, compile, settled):
    [found] = settled(mode, compile=compile, **MICRO)
    assert found["graph"]["enabled"], found
    assert found["graph"]["capture_s"] > 0
    assert found["warning"] is None
    assert found["update_error"] < 0.45
    assert all(part > 0 for passes in found["split"] for part in passes)
    assert len(set(found["losses"])) == gpu_ranks.AFTERWARDS, "training goes on"


def test_the_peak_of_a_replay_is_the_same_wherever_its_proof_keeps_copies(settled):
    # After two steps of Adam alone, two bf16 computations differ by more than the gate's bound.
    [on_gpu] = settled(optimizer="adam", warmup=10, **HUGE)
    [on_host] = settled(optimizer="adam", warmup=10, spare=math.inf, **HUGE)
    assert [found.get("refused") for found in (on_gpu, on_host)] == [None, None]
    assert [found["graph"]["enabled"] for found in (on_gpu, on_host)] == [True, True]
    assert on_gpu["peak"] == pytest.approx(on_host["peak"], rel=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_is_captured(optimizer, settled):
    [found] = settled(optimizer=optimizer, **MICRO)
    assert found["update_error"] < 0.1, found


@pytest.mark.parametrize(
    ("launch", "told"),
    [("StaleInput", "its gradients differ by"), ("NoOptimizer", "what it makes of the weights differs by 1 ")],
)
@pytest.mark.parametrize("mode", ["baseline-bf16", pytest.param("te-fp8:delayed", marks=needs_fp8)])
def test_a_replay_that_is_wrong_is_found(mode, launch, told, settled):
    [found] = settled(mode, launch, data="loader", **HUGE)
    assert told in found.get("refused", ""), found
    assert found["cause"] == "execution"


@needs_fp8
def test_frozen_scales_are_found(settled):
    [found] = settled("te-fp8:delayed", "FrozenScales", **HUGE)
    assert "what it makes of fp8's scales differs by 1 " in found.get("refused", ""), found


@needs_two_gpus
@pytest.mark.parametrize("mode", ["baseline-bf16", pytest.param("te-fp8:delayed", marks=needs_fp8)])
def test_two_gpus_share_their_gradients_inside_the_graph(mode, settled):
    found = settled(mode, gpus=2, data="loader", **HUGE)
    assert [(one["join"], one["graph"]["enabled"], one["spread"]) for one in found] == [("ddp", True, 0)] * 2


@needs_two_gpus
def test_ranks_that_forget_to_share_their_gradients_are_found(settled):
    found = settled("baseline-bf16", "NoAllReduce", gpus=2, data="loader", **HUGE)
    assert all("its ranks' weights move apart by" in one.get("refused", "") for one in found), found


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=needs_two_gpus)])
@pytest.mark.parametrize("waits", ["forward", "backward"])
def test_a_step_that_waits_for_the_gpu_is_launched_from_python_and_says_why(waits, gpus, settled):
    for found in settled(cuda_graphs="auto", waits=waits, gpus=gpus, **MICRO):
        assert found.get("refused") is None
        assert not found["graph"]["enabled"], found
        assert found["graph"]["reason"].startswith("auto: the step cannot be captured in a CUDA graph: ")
        assert found["warning"].startswith("steps were not replayed: ")
        assert len(set(found["losses"])) == gpu_ranks.AFTERWARDS, "training goes on"


def test_a_capture_that_was_asked_for_and_fails_is_refused(settled):
    [found] = settled(waits="forward", **MICRO)
    assert found["cause"] == "capture"


@needs_fp8
@needs_te
def test_a_replayed_run_has_all_that_a_run_has(run):
    _, [record], _ = run("--steps", "20", "--mode", "te-fp8", "--batch-size", "16")
    assert record["evidence"]["graph"]["enabled"], record["evidence"]
    assert record["evidence"]["fp8_kernels"] is True
    assert record["profile"]["by_category"]["attention"] > 0
    assert record["profile"]["by_category"]["optimizer"] > 0
    assert record["memory"][0]["peak_reserved_bytes"] >= record["evidence"]["graph"]["pool_bytes"] > 0
    summary = record["summary"]
    parts = summary["forward_s"] + summary["backward_s"] + summary["optimizer_s"]
    assert parts == pytest.approx(summary["step_time_s"], rel=0.05)
    assert summary["host_lead_s"] < 3 * summary["step_time_s"]
