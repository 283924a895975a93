"""Recipes with fields, layers in fp8 and a scaled loss, on the real libraries."""

import subprocess
import sys
from typing import Any, ClassVar

import pytest
import torch
from gpu.this_gpu import CAPABILITY, ON_GPU, needs_fp8, needs_te

from fp8bench.modes.transformer_engine import TEFP8
from fp8bench.worker.view import look
from fp8bench.workloads.vit import ViTMicro

pytestmark = ON_GPU

QUICK = ("--workload", "vit-micro", "--batch-size", "16", "--warmup", "2", "--steps", "5", "--data", "device")


class WideHeads(ViTMicro):
    """Heads of 128, which fp8 attention takes on compute capability 9.0."""

    architecture: ClassVar[dict[str, Any]] = dict(
        img_size=128, patch_size=8, embed_dim=256, depth=2, num_heads=2, num_classes=16
    )


@needs_fp8
@needs_te
def test_the_fields_of_a_recipe_are_those_that_the_layers_hold(run):
    label = "te-fp8:delayed,history=16,margin=1,amax=most_recent,format=e4m3"
    code, [record], errors = run(*QUICK, "--mode", label)
    assert code == 0, errors
    assert record["evidence"]["details"]["recipe_fields"] == {
        "amax_history_len": 16,
        "margin": 1,
        "amax_compute_algo": "most_recent",
        "fp8_format": "E4M3",
        "fp8_dpa": False,
    }


@needs_fp8
@pytest.mark.parametrize("attention", ["te", "sdpa"])
@pytest.mark.parametrize("graphs", ["on", "off"])
@needs_te
def test_modules_that_are_left_out_run_in_bf16_and_the_rest_in_fp8(run, attention, graphs):
    flags = ("--te-attention", attention, "--cuda-graphs", graphs)
    code, [record], errors = run(*QUICK, *flags, "--mode", "te-fp8:delayed,layers=mlp")
    assert code == 0, errors
    evidence = record["evidence"]
    assert (evidence["details"]["fp8_layers"], evidence["converted_layers"]) == (4, 4)
    assert evidence["fp8_kernels"] is True
    kinds = record["profile"]["by_category"]
    assert kinds["gemm_fp8"] > 0
    assert kinds["gemm_bf16"] > 0


@needs_fp8
def test_torchao_converts_the_chosen_layers_alone(run):
    code, [record], errors = run(*QUICK, "--mode", "torchao-float8:layers=mlp", "--compile", "on")
    assert code == 0, errors
    assert record["evidence"]["converted_layers"] == 4
    assert record["evidence"]["fp8_kernels"] is True


@needs_fp8
def test_auto_takes_the_layers_whose_gemms_pay_by_the_record_of_this_machine(run, tmp_path):
    gemm = [sys.executable, "-m", "fp8bench", "gemm", "--workload", "vit-huge", "--batch-size", "32", "--allow-busy"]
    subprocess.run([*gemm, "--seconds", "0.02", "--results-dir", str(tmp_path)], check=True, capture_output=True)
    flags = ("--workload", "vit-huge", "--batch-size", "32", "--warmup", "1", "--steps", "2", "--data", "device")
    code, [record], errors = run(*flags, "--mode", "te-fp8:delayed,layers=auto")
    assert code == 0, errors
    assert record["config"]["fp8_layer_names"]


@needs_fp8
@pytest.mark.skipif(CAPABILITY >= (10, 0), reason="there heads of 80 have a backend")
def test_fp8_attention_is_refused_for_vit_huge_before_a_process_starts(run):
    code, records, errors = run("--workload", "vit-huge", "--mode", "te-fp8:delayed,dpa=on")
    assert (code, records) == (3, [])
    assert "no backend of fp8 attention" in errors


@needs_fp8
@pytest.mark.skipif(CAPABILITY != (9, 0), reason="the rule of compute capability 9.0")
@needs_te
def test_fp8_attention_runs_for_heads_of_128():
    gpu = torch.device("cuda")
    workload = WideHeads(data="device")
    batch = next(workload.batches(16, 0, gpu))
    mode = TEFP8("delayed,dpa=on")
    model = workload.build(gpu)
    plain = look(model, workload, batch)
    model = mode.convert(model)
    for _ in range(mode.tolerance.settle_passes):
        look(model, workload, batch, mode.forward_context())
    found = look(model, workload, batch, mode.forward_context())
    evidence = mode.evidence(model)
    assert evidence["attention"] == "te:fused+fp8"
    assert evidence["recipe_fields"]["fp8_dpa"] is True
    assert found.loss == pytest.approx(plain.loss, rel=mode.tolerance.loss)
    assert len(mode.step_state(model)) > len(TEFP8("delayed").step_state(model))


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_scaled_loss_trains_and_is_captured_with_its_skips(run, graphs, optimizer):
    flags = ("--compile", "off", "--cuda-graphs", graphs, "--optimizer", optimizer)
    code, [record], errors = run(*QUICK, *flags, "--mode", "baseline-fp16")
    assert code == 0, errors
    details = record["evidence"]["details"]
    assert details["optimizer_steps"] > 5
    assert details["loss_scale"] == 65536 / 2 ** details["skipped_steps"]
    if graphs == "on":
        assert record["evidence"]["executed"]["state_error"] == 0


@needs_fp8
@pytest.mark.parametrize("recipe", ["delayed", "current"])
@needs_te
def test_the_articles_block_in_fp8_is_refused_by_the_gate(run, recipe):
    code, records, errors = run(*QUICK, "--mode", f"te-fp8-article:{recipe}")
    assert code == 4, errors
    [record] = records
    assert record["status"] == "invalid"
    assert "does not compute what the plain model does" in record["reason"]


@needs_fp8
@pytest.mark.parametrize("mode", ["te-bf16", "te-fp8:current"])
@pytest.mark.parametrize("scope", ["on", "blocks"])
@needs_te
def test_transformer_engine_is_compiled_around_its_modules_or_says_on_which_versions_not(run, mode, scope):
    code, [record], errors = run(*QUICK, "--mode", mode, "--compile", scope)
    if code == 0:
        assert any("Transformer Engine 2" in warning for warning in record["evidence"]["warnings"]), errors
    else:
        assert record["status"] in ("failed", "invalid")
        assert record["status"] == "invalid" or "transformer-engine 2" in record["reason"]
