"""Models of timm on the real libraries: each mode through the gate and the proof, whole blocks and layer by layer."""

import pytest
import torch
from gpu.this_gpu import needs_fp8, needs_gpu, needs_te

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(1800)]

QUICK = ("--warmup", "2", "--steps", "5", "--data", "device", "--batch-size", "16")
MODES = ("baseline-bf16", "te-bf16", "te-fp8:delayed", "te-fp8:current", "torchao-float8")


@needs_fp8
@pytest.mark.parametrize(
    ("model", "whole", "attention"),
    [("vit_large_patch16_224", 24, "te:"), ("convnext_base", 0, None), ("eva02_base_patch14_224", 0, "sdpa:")],
)
@needs_te
def test_every_mode_passes_the_gate_and_converts_all_but_the_head(model, whole, attention, run):
    code, records, errors = run(*QUICK, "--workload", f"timm:{model}", *(f"--mode={mode}" for mode in MODES))
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
@needs_te
def test_te_layers_are_the_same_when_activations_are_computed_again(checkpointing, run):
    flags = ("--workload", "timm:convnext_tiny", "--image-size", "64", "--activation-checkpointing", checkpointing)
    code, records, errors = run(*QUICK, *flags, "--mode", "te-fp8:delayed", "--mode", "torchao-float8")
    assert (code, [record["status"] for record in records]) == (0, ["ok", "ok"]), errors
    if checkpointing == "full":
        assert records[0]["evidence"]["parallel"]["checkpointed_blocks"] == 18


def test_te_layer_norm_computes_what_torchs_does(te):
    from fp8bench.modes.te_block import te_layer

    norm, linear = torch.nn.LayerNorm(192, eps=1e-6, device="cuda"), torch.nn.Linear(192, 384, device="cuda")
    for parameter in (*norm.parameters(), *linear.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 7, 7, 192, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        plain, converted = linear(norm(x)), te_layer(te, linear)(te_layer(te, norm)(x))
    assert converted.shape == plain.shape
    assert float((converted - plain).norm() / plain.norm()) < 0.01
    [gradient] = torch.autograd.grad(plain.float().square().sum(), x, retain_graph=True)
    [other] = torch.autograd.grad(converted.float().square().sum(), x)
    assert float((other - gradient).norm() / gradient.norm()) < 0.02
