"""Language models by their published sizes, their tokens, refusals, and the loss that never holds all logits."""

import sys

import pytest
import torch
from torch import nn

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.workloads import head
from fp8bench.workloads.head import Head
from fp8bench.workloads.llama import LLM1B, LLM7B, LLM8B, LLMMicro
from fp8bench.workloads.resizable import resized

CPU = torch.device("cpu")
WORDS, WIDTH, TOKENS = 48, 16, 37


@pytest.mark.slow
def test_the_sizes_are_the_published_ones_and_parameters_of_all_layers_follow_from_two():
    found = [(made().parameters(), made().units_per_step(1)) for made in (LLM1B, LLM7B, LLM8B)]
    assert found == [(1_225_861_120, 2048), (6_738_415_616, 2048), (8_030_261_248, 8192)]
    shallow = resized(LLM1B(sequence_length=64), {"num_hidden_layers": 3})
    assert sum(one.numel() for one in shallow.build(torch.device("meta")).parameters()) == shallow.parameters()


@pytest.mark.slow
def test_a_token_costs_six_operations_a_weight_and_its_attention_and_a_shorter_sequence_is_another_work():
    # Weights of GEMMs alone: an embedding is looked up.
    workload = LLM1B()
    sizes = workload.architecture
    multiplied = workload.parameters() - sizes["vocab_size"] * sizes["hidden_size"]
    # Two GEMMs a layer of sequence x width a token, forward and twice backward.
    attention = 12 * sizes["num_hidden_layers"] * sizes["hidden_size"] * 2048
    assert workload.flops_per_step(1) / 2048 == pytest.approx(6 * multiplied + attention, rel=1e-3)
    short = LLM1B(sequence_length=512)
    assert (short.units_per_step(4), workload.units_per_step(4)) == (2048, 8192)
    assert short.sizes() == {**workload.sizes(), "sequence_length": 512}
    assert short.flops_per_step(4) < workload.flops_per_step(1)


@pytest.mark.slow
class TestModel:
    def test_it_computes_what_transformers_model_does_with_its_weights_and_the_loss_is_of_its_logits(self):
        from transformers.models.llama.modeling_llama import LlamaForCausalLM

        workload = LLMMicro(data="device")
        model, batch = workload.build(CPU), next(workload.batches(2, 0, CPU))
        plain = LlamaForCausalLM(model.model.config)
        plain.load_state_dict(model.state_dict())
        with torch.no_grad():
            assert torch.allclose(model(batch.inputs), plain(batch.inputs).logits, atol=1e-6)
        expected = nn.functional.cross_entropy(workload.logits(model, batch).flatten(0, 1), batch.targets.flatten())
        assert workload.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.slow
class TestRefusals:
    def test_what_a_proof_takes_at_once_fills_fp8s_gemms(self):
        for length, piece in ((2048, 2), (24, 2), (20, 4), (1001, 16)):
            workload = LLMMicro(sequence_length=length)
            assert workload.piece == piece
            workload.check(workload.piece, fp8=True)

    def test_tokens_that_do_not_are_refused_with_both_dimensions_and_both_remedies(self):
        with pytest.raises(ModeUnavailable) as refused:
            LLMMicro(sequence_length=1001).check(4, fp8=True)
        assert refused.value.what == ("fp8 GEMMs need a multiple of 16 tokens, and batch 4 x sequence 1001 are 4,004")
        assert refused.value.remedy == "Use --sequence-length 992 or 1008, or a --batch-size that is a multiple of 16"
        LLMMicro(sequence_length=1001).check(4, fp8=False)

    def test_without_transformers_it_says_what_installs_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers.models.llama", None)
        with pytest.raises(ModeUnavailable, match="need transformers, which cannot be imported") as refused:
            LLMMicro().check(16, fp8=False)
        assert refused.value.remedy == "Install it with `pip install 'fp8bench[llm]'`"


@pytest.fixture
def parts():
    torch.manual_seed(0)
    return Head(WIDTH, WORDS, bias=False), torch.randn(1, TOKENS, WIDTH), torch.randint(WORDS, (1, TOKENS))


def computed(layer, x, targets, chunked):
    """(loss, gradient at the input, at the weight), the loss scaled as pieces of a batch are."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    if chunked:
        loss = layer(x, targets)
    else:
        loss = nn.functional.cross_entropy(layer(x).float().flatten(0, -2), targets.flatten())
    (loss * 0.25).backward()
    return loss.detach(), x.grad, layer.weight.grad.clone()


def apart(one, other):
    return float((one.float() - other.float()).norm() / other.float().norm())


@pytest.mark.parametrize("at_once", [2**27, 10 * WORDS, WORDS, 1], ids=["whole", "four chunks", "a token", "too few"])
def test_it_is_the_cross_entropy_whatever_the_chunk(at_once, parts, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", at_once)
    found, expected = computed(*parts, chunked=True), computed(*parts, chunked=False)
    assert all(apart(one, other) < 1e-5 for one, other in zip(found, expected, strict=True))
    with torch.no_grad():
        loss = parts[0](*parts[1:])
    assert (loss.grad_fn, loss.item()) == (None, pytest.approx(found[0].item(), rel=1e-6))


def test_under_autocast_its_gemms_are_bf16_and_its_sums_float32(parts, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 10 * WORDS)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = computed(*parts, chunked=True), computed(*parts, chunked=False)
        assert parts[0](parts[1]).dtype == torch.bfloat16
    assert (found[0].dtype, found[1].dtype, found[2].dtype) == (torch.float32,) * 3
    assert apart(found[0], expected[0]) < 1e-3
    assert all(apart(one, other) < 1e-2 for one, other in zip(found, expected, strict=True))


@pytest.mark.thorough
def test_torch_compile_takes_it_whole(parts, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 10 * WORDS)
    layer, x, targets = parts
    expected = computed(layer, x, targets, chunked=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = computed(compiled, x, targets, chunked=True)
    assert all(apart(one, other) < 1e-5 for one, other in zip(found, expected, strict=True))
