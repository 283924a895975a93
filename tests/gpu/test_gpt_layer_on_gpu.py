"""What only a GPU can show of the GPT layer: Transformer Engine's own layer computes it under every switch, gradients
beside weights are those of the plain layer, a captured step holds all micro-batches, and several GPUs share it.
"""

import json
import subprocess
import sys

import pytest
import torch
from gpu.this_gpu import ON_GPU, needs_fp8, needs_te

from fp8bench.modes.transformer_engine import TEFP8
from fp8bench.worker.execution.step import announce
from fp8bench.worker.parity import prove
from fp8bench.workloads.gpt_layer import GPTLayerMicro

pytestmark = ON_GPU

SWITCHES = [None, "parallel-setup", "fused-qkv", "fused-qkv+fused-wgrad", "weight-cache", "split-qkv"]
ALL = "fused-qkv+fused-wgrad+weight-cache"
MICRO = {"workload": "gpt-layer-micro", "batch_size": 16, "optimizer": "none", "weight_dtype": "bfloat16"}


@needs_fp8
@pytest.mark.parametrize("label", ["te-bf16", "te-fp8:delayed", "te-fp8:current"])
@pytest.mark.parametrize("switches", [*SWITCHES, ALL])
def test_every_switch_passes_the_gate_and_is_captured(label, switches, settled):
    if label == "te-bf16" and switches and "weight-cache" in switches:
        pytest.skip("te-bf16 has no fp8 weights")
    [found] = settled(label, te_switches=switches, grad_accumulation=4, **MICRO)
    assert found.get("gate", {}).get("passed"), found
    assert 0 < found["gate"]["weight_gradient_error"] < 0.9
    assert found["graph"]["enabled"], found["graph"]["reason"]
    assert found["gradient_error"] < 0.45
    assert found["join"] == ("ddp" if switches == "parallel-setup" else "none")


@needs_fp8
@pytest.mark.usefixtures("process_group")
def test_weights_in_fp8_alone_pass_the_gate(te):
    mode = TEFP8("current", te_switches="fused-qkv+fp8-weights")
    proof = prove(mode, GPTLayerMicro(), 0, torch.device("cuda"))
    assert proof.parity.passed, proof.parity.reason
    weight = proof.model.layer.layer.layernorm_mlp.fc1_weight
    assert isinstance(weight, te.QuantizedTensor)


@needs_fp8
def test_cached_weights_are_cast_once_a_step():
    """By the time that casts take, in steps launched from Python: the cache is filled by the first of 8."""
    pytest.importorskip("transformer_engine.pytorch")
    mode = TEFP8("current", te_switches="weight-cache")
    model = mode.convert(GPTLayerMicro().build(torch.device("cuda")))
    workload, batch = GPTLayerMicro(), next(GPTLayerMicro().batches(2, 0, torch.device("cuda")))
    weight = model.layer.layer.layernorm_mlp.fc1_weight
    found = []
    for first in (True, False, True):
        announce(mode, first)
        with torch.no_grad():
            if len(found) == 1:
                weight.mul_(3)
        with mode.forward_context():
            found.append(workload.loss(model, batch).item())
    assert found[1] == pytest.approx(found[0], rel=1e-3), "a later micro-batch takes the weights of the first"
    assert found[2] != pytest.approx(found[0], rel=1e-2), "and the next step casts them anew"


@needs_fp8
@pytest.mark.parametrize("label", ["te-bf16", "te-fp8:delayed", "te-fp8:current"])
@pytest.mark.parametrize("switches", [None, ALL, "fused-qkv+fused-wgrad"])
def test_two_gpus_share_the_layer_by_its_own_arguments(label, switches, settled):
    if label == "te-bf16" and switches == ALL:
        pytest.skip("te-bf16 has no fp8 weights")
    values = {"tensor_parallel": 2, "te_switches": switches, "grad_accumulation": 2, "cuda_graphs": "auto", **MICRO}
    for found in settled(label, gpus=2, **values):
        assert found.get("gate", {}).get("passed"), found
        assert found["gate"]["weight_gradient_error"] < 0.9
        assert found["join"] == "tp2"
        assert found["gradient_error"] < 0.45


@needs_fp8
@pytest.mark.parametrize("label", ["te-bf16", "te-fp8:current"])
@pytest.mark.parametrize(("parallel", "join"), [("auto", "tp2"), ("fsdp", "fsdp+tp2")])
def test_two_gpus_share_a_language_model_by_its_layers_own_arguments(label, parallel, join, settled):
    values = {"workload": "llm-micro", "batch_size": 8, "sequence_length": 64, "optimizer": "adamw"}
    for found in settled(label, gpus=2, tensor_parallel=2, parallel=parallel, cuda_graphs="auto", **values):
        assert (found["join"], found["reference"]) == (join, "whole model"), found
        assert found["gate"]["later_leakage"] <= 1e-6
        assert found["update_error"] < 0.45


@needs_fp8
@needs_te
def test_the_ladder_is_measured_and_shown(tmp_path):
    short = ["--rounds", "1", "--warmup", "2", "--steps", "5", "--min-time", "0", "--allow-busy", "--quiet"]
    command = [sys.executable, "-m", "fp8bench"]
    flags = ["--config", "configs/presets/gpt-layer.yaml", "--results-dir", str(tmp_path), "--json", *short]
    done = subprocess.run([*command, "run", *flags], capture_output=True, text=True, check=False)
    records = json.loads(done.stdout)
    assert [(record["status"], record["reason"]) for record in records] == [("ok", None)] * 7, done.stderr
    table = [*command, "compare", records[0]["instance"], "--results-dir", str(tmp_path), "--format", "json"]
    rows = json.loads(subprocess.run(table, capture_output=True, text=True, check=True).stdout)
    assert [row["grad_accumulation"] for row in rows] == [8] * 7
    assert {row["te_switches"] for row in rows} == {record["config"]["te_switches"] for record in records}
