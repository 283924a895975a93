"""Models of timm on the real libraries: each mode through the gate and the proof, whole blocks and layer by layer."""

import json
import subprocess
import sys

import pytest
import torch
from gpu.this_gpu import needs_fp8, needs_gpu

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(1800)]

QUICK = ("--rounds", "1", "--warmup", "2", "--steps", "5", "--min-time", "0", "--data", "device", "--batch-size", "16")
MODES = ("baseline-bf16", "te-bf16", "te-fp8:delayed", "te-fp8:current", "torchao-float8")


@pytest.fixture
def run(tmp_path):
    """`fp8bench run` on one GPU with these flags; returns (exit code, records, standard error)."""

    def call(*flags):
        command = [sys.executable, "-m", "fp8bench", "run", "--json", "--results-dir", str(tmp_path), "--gpus", "1"]
        command += ["--allow-busy", "--quiet", *QUICK]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        records = json.loads(done.stdout) if done.stdout.startswith("[") else []
        return done.returncode, records, done.stderr

    return call


@needs_fp8
@pytest.mark.parametrize(
    ("model", "whole", "attention"),
    [("vit_large_patch16_224", 24, "te:"), ("convnext_base", 0, None), ("eva02_base_patch14_224", 0, "sdpa:")],
)
def test_every_mode_passes_the_gate_and_converts_all_but_the_head(model, whole, attention, run):
    pytest.importorskip("transformer_engine.pytorch")
    code, records, errors = run("--workload", f"timm:{model}", *(f"--mode={mode}" for mode in MODES))
    assert [(r["config"]["mode"], r["status"], r["reason"]) for r in records] == [
        (mode.partition(":")[0], "ok", None) for mode in MODES
    ], errors
    assert code == 0
    assert len({record["evidence"]["total_layers"] for record in records}) == 1
    for record in records:
        evidence = record["evidence"]
        assert record["parity"]["leakage"] <= 1e-6
        assert record["fingerprint"]["sizes"]["model"] == model
        if record["config"]["mode"] != "baseline-bf16":
            assert evidence["converted_layers"] == evidence["total_layers"] - 1
        if record["config"]["mode"] == "te-fp8":
            assert evidence["details"]["fp8_layers"] == evidence["converted_layers"]
        if record["config"]["mode"].startswith("te-"):
            assert attention is None or evidence["attention"].startswith(attention)
            if not whole:
                assert evidence["details"]["te_linears"] == evidence["converted_layers"]
                assert evidence["details"]["te_norms"] > 0


@needs_fp8
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_te_layers_are_the_same_when_activations_are_computed_again(checkpointing, run):
    pytest.importorskip("transformer_engine.pytorch")
    flags = ("--workload", "timm:convnext_tiny", "--image-size", "64", "--activation-checkpointing", checkpointing)
    code, records, errors = run(*flags, "--mode", "te-fp8:delayed", "--mode", "torchao-float8")
    assert (code, [record["status"] for record in records]) == (0, ["ok", "ok"]), errors
    if checkpointing == "full":
        assert records[0]["evidence"]["parallel"]["checkpointed_blocks"] == 18


def test_te_layer_norm_computes_what_torchs_does():
    te = pytest.importorskip("transformer_engine.pytorch")
    from fp8bench.modes.te_layers import te_linear, te_norm

    norm, linear = torch.nn.LayerNorm(192, eps=1e-6, device="cuda"), torch.nn.Linear(192, 384, device="cuda")
    for parameter in (*norm.parameters(), *linear.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 7, 7, 192, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        plain, converted = linear(norm(x)), te_linear(te, linear)(te_norm(te, norm)(x))
    assert converted.shape == plain.shape
    assert float((converted - plain).norm() / plain.norm()) < 0.01
    [gradient] = torch.autograd.grad(plain.float().square().sum(), x, retain_graph=True)
    [other] = torch.autograd.grad(converted.float().square().sum(), x)
    assert float((other - gradient).norm() / gradient.norm()) < 0.02
