"""The gate on real models: right conversions pass, and each way of computing something else is refused with its
reason.
"""

import math

import pytest
import torch
from torch import nn
from worker.faulty_blocks import AcrossTheBatch, Causal, Forgetful, IgnoresItsInput

from fp8bench.modes.baseline import BaselineBF16, BaselineFP32
from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker import parity
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


def mode_with(block_class):
    """The baseline, but with every block of the model wrapped by `block_class`."""

    class Wrapped(BaselineBF16):
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
        assert "its logits differ by" in found.reason

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
        parity.look(model, workload, batch)
        parity.leakage(model, workload, batch)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert all(parameter.grad is None for parameter in model.parameters())


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
    reason = parity.judge(measured, BF16_TOLERANCE, gradient_is_zero=False)
    assert all(word in reason for word in ("logits hardly differ", "see each other", "loss", "input gradient"))


def test_the_bounds_themselves_still_pass():
    measured = {
        "logits_error": BF16_TOLERANCE.logits,
        "loss_error": BF16_TOLERANCE.loss,
        "input_gradient_error": BF16_TOLERANCE.input_gradient,
        "separation": BF16_TOLERANCE.min_separation,
        "leakage": BF16_TOLERANCE.max_leakage,
    }
    assert parity.judge(measured, BF16_TOLERANCE, gradient_is_zero=False) is None
