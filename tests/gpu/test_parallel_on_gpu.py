"""What only GPUs can show of parallelism: NCCL, fused kernels, captured micro-batches, and the memory that is saved."""

import pytest
from gpu import gpu_ranks
from gpu.this_gpu import ON_GPU, needs_fp8, needs_two_gpus

pytestmark = ON_GPU

TWO = {"gpus": 2, "cuda_graphs": "auto", "optimizer": "adamw"}
MICRO = {**TWO, "workload": "vit-micro", "batch_size": 32}
HUGE = {**TWO, "workload": "vit-huge", "batch_size": 16, "cuda_graphs": "off"}
ONE = {"gpus": 1, "cuda_graphs": "off"}


@pytest.mark.parametrize(
    ("mode", "compile", "gathered"),
    [
        ("baseline-bf16", "off", "bfloat16"),
        ("baseline-bf16", "blocks", "bfloat16"),
        ("baseline-tf32", "off", "float32"),
        pytest.param("te-bf16", "off", "bfloat16", marks=needs_fp8),
        pytest.param("te-fp8:current", "off", "bfloat16", marks=needs_fp8),
        pytest.param("torchao-float8:tensorwise", "blocks", "float8_e4m3fn", marks=needs_fp8),
        pytest.param("torchao-float8:rowwise", "blocks", "bfloat16", marks=needs_fp8),
    ],
)
def test_sharded_steps_are_proved_against_a_whole_model(mode, compile, gathered, settled):
    for found in settled(mode, parallel="fsdp", compile=compile, **MICRO):
        assert (found["join"], found["reference"]) == ("fsdp", "whole model"), found
        assert found["parallel"]["gathered_dtype"] == gathered
        assert found["update_error"] < 0.45
        assert found["unshared"] < 0.1
        assert not found["graph"]["enabled"]
        assert "FSDP2 gathers weights on streams of its own" in found["graph"]["reason"]


@needs_fp8
@pytest.mark.parametrize("accumulation", [1, 2])
def test_delayed_scaling_is_compared_with_a_second_model_that_has_a_state_of_its_own(accumulation, settled):
    for found in settled("te-fp8:delayed", parallel="fsdp", grad_accumulation=accumulation, **MICRO):
        assert (found["reference"], found["warning"]) == ("whole model", None), found
        assert found["state_error"] < 0.45
        assert found["unshared"] < 0.1
        assert len(set(found["losses"])) == gpu_ranks.AFTERWARDS, "training goes on"


@pytest.mark.parametrize(
    ("mode", "compile", "spread"),
    [
        ("baseline-bf16", "off", 1e-4),
        ("baseline-bf16", "blocks", 1e-4),
        pytest.param("torchao-float8:tensorwise", "blocks", 2**-8, marks=needs_fp8),
    ],
)
def test_two_gpus_that_share_layers_do_what_one_does(mode, compile, spread, settled):
    for found in settled(mode, tensor_parallel=2, compile=compile, **MICRO):
        assert (found.get("join"), found.get("reference")) == ("tp2", "whole model"), found
        assert found["spread"] < spread
        assert found["update_error"] < 0.45


def test_a_gpu_that_holds_a_part_needs_less_memory(settled):
    whole = settled(parallel="ddp", **HUGE)
    parts = settled(parallel="fsdp", **HUGE)
    assert max(found["peak"] for found in parts) < 0.75 * min(found["peak"] for found in whole)


@needs_two_gpus
def test_auto_takes_ddp_where_everything_fits(settled):
    for found in settled(parallel="auto", **HUGE):
        assert found["join"] == "ddp"
        assert found["parallel"]["reason"].startswith("auto: weights, gradients and optimizer state take ")


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=needs_two_gpus)])
@pytest.mark.parametrize("mode", ["baseline-bf16", pytest.param("te-fp8:delayed", marks=needs_fp8)])
def test_a_graph_holds_all_micro_batches_of_a_step(gpus, mode, settled):
    for found in settled(mode, grad_accumulation=2, **MICRO | {"gpus": gpus, "cuda_graphs": "on"}):
        assert found["graph"]["enabled"], found
        assert found["update_error"] < 0.45
        assert all(part > 0 for passes in found["split"] for part in passes)


@pytest.mark.parametrize(
    ("mode", "kind", "compile"),
    [
        ("baseline-bf16", "full", "off"),
        ("baseline-bf16", "selective", "blocks"),
        pytest.param("te-fp8:delayed", "full", "off", marks=needs_fp8),
        pytest.param("te-fp8:current", "full", "off", marks=needs_fp8),
        pytest.param("torchao-float8:tensorwise", "selective", "blocks", marks=needs_fp8),
    ],
)
def test_activations_that_are_computed_again_are_the_same(mode, kind, compile, settled):
    [found] = settled(mode, activation_checkpointing=kind, compile=compile, **MICRO | ONE)
    assert found["parallel"]["checkpointed_blocks"] == 2, found
    assert found["gradient_error"] < 0.45


def test_activations_that_are_dropped_need_no_memory(settled):
    peaks = {}
    for kind in ("none", "selective", "full"):
        [found] = settled(activation_checkpointing=kind, **HUGE | ONE | {"batch_size": 64})
        peaks[kind] = found["peak"]
    assert peaks["full"] < peaks["selective"] < peaks["none"]
