"""What only a GPU can show: every mode through the gate on the real libraries, and the articles' block refused."""

import pytest
import torch
from gpu.this_gpu import CAPABILITY, ON_GPU, needs_fp8, needs_te

pytestmark = ON_GPU


QUICK = ("--workload", "vit-micro", "--batch-size", "16", "--warmup", "2", "--steps", "5", "--data", "device")


@needs_fp8
@pytest.mark.parametrize(
    ("attention", "modes"),
    [
        ("te", ("te-bf16", "te-fp8:delayed", "te-fp8:current", "te-fp8:block")),
        ("sdpa", ("te-fp8:delayed",)),
    ],
)
@needs_te
def test_transformer_engine_modes_pass_the_gate_and_convert_every_layer_but_the_head(run, attention, modes):
    code, records, errors = run(*QUICK, "--te-attention", attention, *(f"--mode={mode}" for mode in modes))
    assert [(r["config"]["mode"], r["config"]["recipe"], r["status"], r["reason"]) for r in records] == [
        (mode.partition(":")[0], mode.partition(":")[2] or None, "ok", None) for mode in modes
    ], errors
    assert code == 0
    for record in records:
        evidence = record["evidence"]
        assert (evidence["converted_layers"], evidence["total_layers"]) == (8, 9)
        assert evidence["attention"].startswith("te:" if attention == "te" else "sdpa:")
        assert record["parity"]["passed"]
        if record["config"]["mode"] == "te-fp8":
            assert evidence["details"]["fp8_layers"] == 8
            assert {"delayed": "Delayed", "current": "Current", "block": "Block"}[record["config"]["recipe"]] in (
                evidence["recipe"]
            )


@pytest.mark.parametrize("workload", ["vit-micro", "vit-huge-256"])
@needs_te
def test_the_articles_block_is_refused_by_the_gate(run, workload):
    flags = ("--workload", workload, "--batch-size", "16", "--warmup", "1", "--steps", "2", "--data", "device")
    code, [record], _ = run(*flags, "--mode", "te-bf16-article")
    assert (code, record["status"]) == (4, "invalid")
    assert record["summary"] is None
    assert "does not compute what the plain model does" in record["reason"]


@needs_fp8
def test_torchao_runs_fp8_and_compiles_the_model_in_one_graph(run):
    code, [record], errors = run(*QUICK, "--mode", "torchao-float8", "--compile", "on")
    assert code == 0, errors
    assert record["environment"]["device_name"] == torch.cuda.get_device_name()
    assert record["memory"][0]["peak_allocated_bytes"] > 0
    assert record["telemetry"][0]["power_limit_w"] > 0
    assert len(record["samples"][0]["step_s"]) == len(record["samples"][0]["host_lead_s"]) == 5
    evidence = record["evidence"]
    assert (evidence["converted_layers"], evidence["emulated"]) == (8, False)
    assert (evidence["compile"]["enabled"], evidence["compile"]["graphs"], evidence["compile"]["graph_breaks"]) == (
        True,
        1,
        0,
    )
    assert evidence["compile"]["recompilations"] == 0
    assert 0 < evidence["executed"]["gradient_error"] < 0.45
    assert 0 < evidence["executed"]["update_error"] < 0.45


def test_float32_modes_switch_autocast_off_and_say_which_precision_ran(run):
    code, records, errors = run(*QUICK, "--mode", "baseline-fp32", "--mode", "baseline-tf32", "--compile", "off")
    assert code == 0, errors
    assert [r["evidence"]["details"]["float32_matmul_precision"] for r in records] == ["highest", "high"]


def test_running_out_of_memory_names_the_rank_what_was_asked_and_the_remedy(run):
    flags = ("--workload", "vit-huge", "--batch-size", "4096", "--warmup", "0", "--steps", "1", "--data", "device")
    code, [record], _ = run(*flags, "--mode", "baseline-bf16", "--compile", "off")
    assert (code, record["status"]) == (5, "failed")
    assert "rank 0 ran out of GPU memory at batch size 4096" in record["reason"]
    assert "GiB" in record["reason"]
    assert "Lower --batch-size" in record["remedy"]


@needs_fp8
@needs_te
def test_mxfp8_is_unsupported_below_compute_capability_10(run):
    if CAPABILITY >= (10, 0):
        pytest.skip("this GPU has mxfp8")
    code, [record], _ = run(*QUICK, "--mode", "te-fp8:mxfp8")
    assert (code, record["status"]) == (3, "unsupported")
    assert record["reason"]
    assert record["remedy"]


@needs_te
def test_delayed_scaling_refuses_torch_compile(run):
    code, [record], _ = run(*QUICK, "--mode", "te-fp8:delayed", "--compile", "on")
    assert (code, record["status"]) == (3, "unsupported")
    assert "recompiles" in record["reason"]
