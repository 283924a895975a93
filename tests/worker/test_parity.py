"""The gate on real models: right conversions pass, and each way of computing something else is refused with its
reason.
"""

import math
import re

import pytest
import torch
from torch import nn
from worker.faulty_blocks import AcrossTheBatch, Causal, Forgetful, IgnoresItsInput, gate_and_up_exchanged
from worker.plain_models import DeepLlama

from fp8bench.modes.baseline import BaselineBF16, BaselineFP32
from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker import parity, view
from fp8bench.worker.rounding import MOST
from fp8bench.workloads import llama
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")


class ViTMicroAveraged(ViTMicro):
    """Without a class token, as the second article's model: every token reaches the output."""

    name = "vit-micro-averaged"
    architecture = {**ViTMicro.architecture, "class_token": False, "global_pool": "avg"}  # noqa: RUF012


class Tokens(ViTMicro):
    """Integer tokens through an embedding and like blocks to a logit for every token."""

    name = "tokens"
    vocabulary, length = 32, 12

    def build(self, device):
        class Model(nn.Module):
            def __init__(self, vocabulary, width=32):
                super().__init__()
                self.embed = nn.Embedding(vocabulary, width)
                self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(width, 2, 64, 0.0, batch_first=True),) * 2)
                self.head = nn.Linear(width, vocabulary)

            def forward(self, tokens):
                return self.head(self.blocks(self.embed(tokens)))

        torch.manual_seed(self.seed)
        return Model(self.vocabulary).to(device)

    def batches(self, batch_size, rank, device):
        generator = torch.Generator().manual_seed(rank)
        while True:
            tokens = torch.randint(self.vocabulary, (batch_size, self.length + 1), generator=generator).to(device)
            yield Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


class TokensWithoutEmbedding(Tokens):
    """Looks its tokens up by hand."""

    def build(self, device):
        class Model(nn.Module):
            def __init__(self, vocabulary):
                super().__init__()
                self.table = nn.Parameter(torch.randn(vocabulary, vocabulary))

            def forward(self, tokens):
                return self.table[tokens]

        return Model(self.vocabulary).to(device)


def within(model):
    return {name: re.sub(r"(\d)\.(block|layer)\.", r"\1.", name) for name, _ in model.named_parameters()}


def mode_with(block_class):
    class Wrapped(BaselineBF16):
        plain_weights = staticmethod(within)

        def convert(self, model):
            model.blocks = nn.Sequential(*(block_class(block) for block in model.blocks))
            return model

    return Wrapped()


def verdict(mode, workload_class=ViTMicro):
    return parity.prove(mode, workload_class(data="device"), rank=0, device=CPU).parity


@pytest.mark.usefixtures("process_group")
class TestProve:
    @pytest.mark.parametrize("workload_class", [ViTMicro, ViTMicroAveraged])
    def test_the_plain_model_agrees_with_itself_exactly(self, workload_class):
        found = verdict(BaselineBF16(), workload_class)
        assert found.passed
        assert (found.logits_error, found.loss_error, found.input_gradient_error) == (0, 0, 0)
        assert (found.separation, found.leakage) == (1, 0)

    def test_float32_passes_within_the_bf16_bounds_without_being_equal(self):
        found = verdict(BaselineFP32())
        assert found.passed
        assert 0 < found.logits_error < BF16_TOLERANCE.logits

    @pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
    def test_emulated_float8_passes_its_own_bounds_and_would_fail_those_of_bf16(self, recipe):
        found = verdict(TorchAOFloat8(recipe))
        assert found.passed
        assert BF16_TOLERANCE.logits < found.logits_error < FP8_TOLERANCE.logits

    @pytest.mark.parametrize("workload_class", [ViTMicro, ViTMicroAveraged])
    def test_attention_across_the_batch_is_refused_with_or_without_a_class_token(self, workload_class):
        found = verdict(mode_with(AcrossTheBatch), workload_class)
        assert not found.passed
        assert "logits hardly differ" in found.reason or "samples of a batch see each other" in found.reason

    def test_attention_across_the_batch_hides_from_the_error_bounds_of_a_shallow_model_but_leaks(self):
        found = verdict(mode_with(AcrossTheBatch), ViTMicroAveraged)
        assert found.logits_error < BF16_TOLERANCE.logits
        assert found.leakage > BF16_TOLERANCE.max_leakage

    def test_a_causal_mask_is_refused(self):
        found = verdict(mode_with(Causal))
        assert not found.passed
        assert found.input_gradient_error > BF16_TOLERANCE.input_gradient

    @pytest.mark.parametrize("workload_class", [ViTMicro, ViTMicroAveraged])
    def test_weights_that_were_not_copied_are_refused(self, workload_class):
        found = verdict(mode_with(Forgetful), workload_class)
        assert not found.passed
        assert "does not hold the numbers of blocks.0.attn.qkv.weight" in found.reason

    def test_an_output_that_ignores_its_input_is_refused(self):
        found = verdict(mode_with(IgnoresItsInput))
        assert not found.passed
        assert found.separation == 0
        assert "the gradient at its input is exactly zero" in found.reason

    def test_a_numeric_fault_in_the_converted_model_is_refused_and_kept_as_null(self):
        class Broken(nn.Module):
            def __init__(self, block):
                super().__init__()
                self.block = block

            def forward(self, x):
                return self.block(x) * math.nan

        found = verdict(mode_with(Broken))
        assert not found.passed
        assert found.logits_error is None

    def test_looking_changes_no_weight_and_leaves_no_gradient(self):
        workload = ViTMicro(data="device")
        model = workload.build(CPU)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        batch = next(workload.batches(4, 0, CPU))
        view.look(model, workload, batch)
        view.leakage(model, workload, batch)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_whose_terms_cancel_is_held_to_their_size():
    def looked(workload):
        model = workload.build(CPU)
        return view.look(model, workload, next(workload.batches(4, 0, CPU)))

    found = looked(GPTLayerMicro(data="device"))
    batch = next(GPTLayerMicro(data="device").batches(4, 0, CPU))
    terms = (found.logits * batch.targets.float()).abs().sum() / 4
    assert found.loss_size == pytest.approx(float(terms), rel=0.01)
    assert found.loss_size > 3 * abs(found.loss)
    found = looked(ViTMicro(data="device"))
    assert found.loss_size == found.loss, "cross-entropy of a fresh model is larger than its terms"


class Bidirectional(nn.Module):
    """A layer whose tokens attend to those after them too."""

    def __init__(self, layer):
        super().__init__()
        layer.self_attn.is_causal = False
        self.layer = layer

    def forward(self, x, **rest):
        return self.layer(x, **rest)


class AcrossTheSamples(nn.Module):
    """A layer that takes [batch, tokens, width] for [tokens, batch, width], as a causal one: a token attends to the
    same token of the samples before its own.
    """

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, position_embeddings, **rest):
        at_start = tuple(part[:, : x.shape[0]] for part in position_embeddings)
        return self.layer(x.transpose(0, 1), position_embeddings=at_start, **rest).transpose(0, 1)


class SeesTheNext(nn.Module):
    """A layer that mixes a little of the next token in, which is the target."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, **rest):
        return self.layer(x + 1e-3 * x.roll(-1, 1), **rest)


def mode_with_layer(layer_class):
    class Wrapped(BaselineBF16):
        plain_weights = staticmethod(within)

        def convert(self, model):
            model.model.layers = nn.ModuleList(layer_class(layer) for layer in model.model.layers)
            return model

    return Wrapped()


@pytest.mark.usefixtures("process_group")
class TestCausal:
    """llm-micro, whose loss never holds its logits: the gate asks the workload for them."""

    def test_the_plain_model_agrees_with_itself_exactly_and_sees_nothing_later(self):
        found = verdict(BaselineBF16(), LLMMicro)
        assert found.passed, found.reason
        assert (found.logits_error, found.loss_error, found.input_gradient_error) == (0, 0, 0)
        assert (found.leakage, found.later_leakage, found.batch_size) == (0, 0, 2)

    def test_emulated_float8_passes(self):
        found = verdict(TorchAOFloat8("tensorwise"), LLMMicro)
        assert found.passed, found.reason
        assert 0 < found.logits_error < FP8_TOLERANCE.logits
        assert (found.leakage, found.later_leakage) == (0, 0)

    @pytest.mark.parametrize("layer_class", [Bidirectional, SeesTheNext])
    def test_a_token_that_sees_later_ones_is_refused(self, layer_class):
        found = verdict(mode_with_layer(layer_class), LLMMicro)
        assert not found.passed
        assert "its tokens see later ones, which a causal model must not" in found.reason
        assert found.later_leakage > BF16_TOLERANCE.max_leakage
        assert found.leakage == 0

    def test_a_little_of_the_next_token_hides_from_every_other_bound(self):
        found = verdict(mode_with_layer(SeesTheNext), LLMMicro)
        assert found.logits_error < BF16_TOLERANCE.logits
        assert found.loss_error < BF16_TOLERANCE.loss
        assert found.input_gradient_error < BF16_TOLERANCE.input_gradient

    def test_attention_across_the_samples_is_refused(self):
        found = verdict(mode_with_layer(AcrossTheSamples), LLMMicro)
        assert not found.passed
        assert "the samples of a batch see each other" in found.reason

    def test_a_workload_that_is_not_causal_is_not_asked(self):
        assert verdict(BaselineBF16(), Tokens).later_leakage is None


def float8_with(fault):
    class Faulty(TorchAOFloat8):
        def convert(self, model):
            model = super().convert(model)
            with torch.no_grad():
                fault(model)
            return model

    return Faulty()


def other_angles(model):
    model.model.rotary_emb.inv_freq **= math.log(1e4) / math.log(5e5)


def other_heads(model):
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda _layer, _inputs, output: output.roll(32, -1))


def gate_for_up(model):
    for number in range(len(model.model.layers)):
        gate_and_up_exchanged(model, number)


@pytest.mark.usefixtures("process_group")
class TestDeep:
    """After many layers rounding adds up, so that bounds follow from what rounding alone does to the model."""

    @pytest.fixture(autouse=True)
    def gains_of_2048_wide(self, monkeypatch):
        monkeypatch.setattr(llama, "INITIAL_STD", 0.02 * math.sqrt(2048 / 128))

    def test_emulated_float8_is_as_far_off_as_rounding_alone(self):
        found = verdict(TorchAOFloat8("tensorwise"), DeepLlama)
        assert found.passed, found.reason
        assert found.input_gradient_error == pytest.approx(found.rounding_input_gradient_error, rel=0.2)
        assert found.logits_error == pytest.approx(found.rounding_logits_error, rel=0.2)
        assert found.rounding_input_gradient_error < found.tolerance.input_gradient < MOST

    @pytest.mark.parametrize("fault", [other_angles, other_heads, gate_for_up])
    def test_a_fault_shows_beside_that_rounding(self, fault):
        found = verdict(float8_with(fault), DeepLlama)
        assert not found.passed
        assert "its logits differ by" in found.reason
        assert "its input gradient differs by" in found.reason

    @pytest.mark.parametrize("model", [LLMMicro, DeepLlama])
    def test_steps_are_held_to_what_the_mode_states_where_less_rounding_is_explained(self, model):
        proof = parity.prove(TorchAOFloat8("tensorwise"), model(data="device"), rank=0, device=CPU)
        explained = proof.parity.tolerance.input_gradient
        assert (explained < FP8_TOLERANCE.input_gradient) == (model is LLMMicro)
        assert proof.of_steps.input_gradient == max(explained, FP8_TOLERANCE.input_gradient)

    def test_without_fp8_there_is_no_rounding_to_allow_for(self):
        found = verdict(BaselineBF16(), LLMMicro)
        assert found.rounding_logits_error is found.rounding_input_gradient_error is None
        assert found.tolerance == BF16_TOLERANCE


@pytest.mark.usefixtures("process_group")
class TestTokens:
    def test_a_model_of_integer_tokens_agrees_with_itself_and_takes_its_gradient_at_the_embedding(self):
        found = verdict(BaselineBF16(), Tokens)
        assert found.passed, found.reason
        assert (found.input_gradient_error, found.leakage) == (0, 0)

    def test_attention_across_the_batch_is_refused(self):
        found = verdict(mode_with(AcrossTheBatch), Tokens)
        assert not found.passed
        assert "the samples of a batch see each other" in found.reason

    def test_tokens_that_meet_no_embedding_are_refused_with_the_remedy(self):
        with pytest.raises(MeasurementInvalid, match=r"no torch\.nn\.Embedding") as refusal:
            verdict(BaselineBF16(), TokensWithoutEmbedding)
        assert refusal.value.cause == "parity"


def test_a_number_that_is_not_finite_fails_every_bound():
    measured = dict.fromkeys(("logits_error", "loss_error", "input_gradient_error", "separation", "leakage"), math.nan)
    reason = "; ".join(view.judge(measured, BF16_TOLERANCE, gradient_is_zero=False))
    assert all(word in reason for word in ("logits hardly differ", "see each other", "loss", "input gradient"))


def test_the_bounds_themselves_still_pass():
    measured = {
        "logits_error": BF16_TOLERANCE.logits,
        "loss_error": BF16_TOLERANCE.loss,
        "input_gradient_error": BF16_TOLERANCE.input_gradient,
        "separation": BF16_TOLERANCE.min_separation,
        "leakage": BF16_TOLERANCE.max_leakage,
    }
    assert view.judge(measured, BF16_TOLERANCE, gradient_is_zero=False) == []
