"""What only a GPU can show of language models: Transformer Engine's own layers compute Llama's, every mode is captured
and proved on tokens, attention keeps its fast kernels, and the loss its memory.
"""

import pytest
import torch
from gpu import gpu_ranks
from gpu.this_gpu import ON_GPU, needs_fp8, needs_te, needs_two_gpus
from torch import nn

from fp8bench.modes.transformer_engine import TEBF16
from fp8bench.workloads.head import Head
from fp8bench.workloads.llama import LLM1B, LLMMicro

pytestmark = ON_GPU

MODES = [
    "baseline-bf16",
    pytest.param("te-bf16", marks=needs_fp8),
    pytest.param("te-fp8:delayed", marks=needs_fp8),
    pytest.param("te-fp8:current", marks=needs_fp8),
    pytest.param("torchao-float8", marks=needs_fp8),
]
COMPILED = {"baseline-bf16": "blocks", "torchao-float8": "blocks"}
SHARP = 0.25
FEW = ("--warmup", "2", "--steps", "5")
TOKENS = {"workload": "llm-1b", "layers": 2, "batch_size": 2, "sequence_length": 2048, "data": "loader"}


def of_mode(label):
    return {"optimizer": "adamw", "compile": COMPILED.get(label, "off")}


def sharp_model():
    """Weights are large, so that attention is sharp, and whatever is wrong about it moves every logit."""
    device = torch.device("cuda")
    workload = LLMMicro(data="device", sequence_length=128)
    model = workload.build(device)
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, SHARP, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return workload, model, next(workload.batches(2, 0, device))


def logits_error(attention, change):
    workload, model, batch = sharp_model()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        plain = workload.logits(model, batch).float()
        model = TEBF16(te_attention=attention).convert(model)
        change(model)
        found = workload.logits(model, batch).float()
    return float((found - plain).norm() / plain.norm())


def wrong_base(model):
    for layer in model.model.layers:
        layer.angles = layer.angles * 0.5


def other_head(model):
    """Queries by one head further, so that half of them meet the key of another group."""
    for layer in model.model.layers:
        weight = layer.layer.self_attention.layernorm_qkv.weight
        weight[:64].copy_(weight[:64].roll(16, 0))


def gate_for_up(model):
    for layer in model.model.layers:
        weight = layer.layer.layernorm_mlp.fc1_weight
        weight.copy_(weight.roll(len(weight) // 2, 0))


@needs_fp8
@pytest.mark.parametrize("attention", ["te", "sdpa"])
@needs_te
def test_transformer_engines_layers_compute_llamas(attention):
    assert logits_error(attention, lambda _model: None) < 0.1


@needs_fp8
@pytest.mark.parametrize("change", [wrong_base, other_head, gate_for_up])
@needs_te
def test_what_could_be_mixed_up_in_them_would_show(change):
    assert logits_error("te", change) > 0.3


@pytest.mark.parametrize("label", MODES)
@pytest.mark.parametrize(
    ("workload", "layers", "batch_size", "sequence_length"),
    [("llm-micro", None, 8, 64), ("llm-1b", 2, 2, 2048)],
    ids=["micro", "1b of 2 layers"],
)
def test_a_whole_step_on_tokens_is_captured_and_proved(label, workload, layers, batch_size, sequence_length, settled):
    sizes = {"workload": workload, "batch_size": batch_size, "sequence_length": sequence_length}
    [found] = settled(label, layers=layers, **sizes, **of_mode(label))
    assert found.get("graph", {}).get("enabled"), found
    assert found["warning"] is None
    assert found["update_error"] < 0.45
    assert found["gradient_error"] < 0.45
    assert all(part > 0 for passes in found["split"] for part in passes)
    assert len(set(found["losses"])) == gpu_ranks.AFTERWARDS, "training goes on"


@pytest.mark.parametrize("label", ["baseline-bf16", pytest.param("te-fp8:delayed", marks=needs_fp8)])
def test_a_replay_that_never_reads_its_tokens_is_found(label, settled):
    [found] = settled(label, launch="StaleInput", **TOKENS, **of_mode(label))
    assert "its gradients differ by" in found.get("refused", ""), found


@needs_two_gpus
@pytest.mark.parametrize("label", MODES)
def test_two_gpus_share_the_gradients_of_tokens_inside_the_graph(label, settled):
    found = settled(label, gpus=2, **TOKENS, **of_mode(label))
    assert [(one["join"], one["graph"]["enabled"], one["spread"]) for one in found] == [("ddp", True, 0)] * 2


@needs_two_gpus
def test_two_gpus_compile_the_whole_model_with_its_loss(settled):
    """torch cuts the graph at DDP's buckets, which an operator of a higher order may forbid."""
    found = settled(gpus=2, **TOKENS, optimizer="adamw", compile="on")
    assert [(one.get("join"), one.get("spread")) for one in found] == [("ddp", 0)] * 2, found


@needs_fp8
@pytest.mark.parametrize("attention", ["te", "sdpa"])
@needs_te
def test_every_layer_but_the_head_is_converted_and_no_token_sees_a_later_one(attention, run):
    flags = ("--workload", "llm-micro", "--te-attention", attention)
    modes = ("te-bf16", "te-fp8:delayed", "te-fp8:current", "te-fp8:block", "torchao-float8")
    code, records, errors = run(*FEW, *flags, *(f"--mode={mode}" for mode in modes))
    assert [(record["status"], record["reason"]) for record in records] == [("ok", None)] * len(modes), errors
    assert code == 0
    for record in records:
        assert (record["evidence"]["converted_layers"], record["evidence"]["total_layers"]) == (14, 15)
        assert record["parity"]["later_leakage"] <= 1e-6
        assert record["environment"]["versions"]["transformers"]
        if record["config"]["mode"] == "te-fp8":
            assert record["evidence"]["details"]["fp8_layers"] == 14
        if record["config"]["mode"].startswith("te"):
            assert record["evidence"]["attention"].startswith("te:" if attention == "te" else "sdpa:")


@pytest.mark.parametrize("compile", ["off", "blocks", "on"])
def test_attention_keeps_its_fast_kernels_however_the_model_is_compiled(compile, run):
    flags = ("--workload", "llm-micro", "--sequence-length", "512", "--mode", "baseline-bf16", "--compile", compile)
    code, [record], errors = run(*FEW, *flags)
    assert code == 0, errors
    assert record["profile"]["by_category"]["attention"] > 0
    if compile == "on":
        assert (record["evidence"]["compile"]["graphs"], record["evidence"]["compile"]["graph_breaks"]) == (1, 0)


@needs_fp8
def test_tokens_that_do_not_fill_fp8s_gemms_are_unsupported_in_fp8_alone(run):
    flags = ("--workload", "llm-micro", "--sequence-length", "33", "--batch-size", "3")
    code, records, errors = run(*FEW, *flags, "--mode", "baseline-bf16", "--mode", "torchao-float8")
    assert [record["status"] for record in records] == ["ok", "unsupported"], errors
    assert code == 3  # a mode that was named cannot run
    assert "batch 3 x sequence 33 are 99" in records[1]["reason"]
    assert "--sequence-length 32 or 48" in records[1]["remedy"]


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.mem_get_info()[1] > 100 * 2**30, reason="this GPU may hold the 7B model"
)
def test_a_model_that_cannot_fit_is_refused_before_it_is_built(run):
    code, [record], errors = run(*FEW, "--workload", "llm-7b", "--mode", "baseline-bf16")
    assert (code, record["status"], record["cause"]) == (3, "unsupported", "unavailable"), errors
    assert "needs 100.4 GiB for weights, gradients and the state of adamw" in record["reason"]
    assert "are missing" in record["reason"]


def test_the_loss_of_many_tokens_takes_no_more_memory_than_a_few_chunks():
    """Plain cross entropy of 32,768 tokens holds 32,768 x 32,000 logits, 3.9 GiB in float32, several times over."""
    sizes, tokens = LLM1B.architecture, 32_768
    head = Head(sizes["hidden_size"], sizes["vocab_size"], bias=False, device="cuda")
    x = torch.randn(1, tokens, sizes["hidden_size"], device="cuda", requires_grad=True)
    targets = torch.randint(sizes["vocab_size"], (1, tokens), device="cuda")

    def peak(loss_of):
        x.grad = head.weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of()
        loss.backward()
        return loss.item(), torch.cuda.max_memory_allocated() - before

    chunked, few = peak(lambda: head(x, targets))
    plain, many = peak(lambda: nn.functional.cross_entropy(head(x).flatten(0, 1), targets.flatten()))
    assert chunked == pytest.approx(plain, rel=1e-3)
    assert few < 3 * 2**30 < 7 * 2**30 < many
