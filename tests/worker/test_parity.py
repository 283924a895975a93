"""The gate on real models: right conversions pass, and what computes something else is refused with its reason."""

import math
import re
from functools import partial

import pytest
import torch
from marks import thorough_unless
from worker import faulty_blocks as faulty
from worker.faulty_blocks import everywhere, verdict
from worker.plain_models import Attending, ByHand, DeepLlama, PlainModel

from fp8bench.modes.baseline import BaselineBF16, BaselineFP32
from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker import parity, view
from fp8bench.worker.rounding import MOST
from fp8bench.workloads import llama
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
NOTHING_ELSE = "the gradient at its input is exactly zero"
SEEN = "the samples of a batch see each other"
LATER = "its tokens see later ones, which a causal model must not"


class Averaged(ViTMicro):
    """Without a class token, as the second article's model: every token reaches the output."""

    name = "vit-micro-averaged"
    architecture = {**ViTMicro.architecture, "class_token": False, "global_pool": "avg"}  # noqa: RUF012


class Shortened(LLMMicro):
    gate_length = 32


def of(base=BaselineBF16, plant=lambda _model: None, workload=ViTMicro):
    return verdict(base, plant, workload(data="device"))


def tokens(data):
    return PlainModel(Attending)


def tokens_by_hand(data):
    return PlainModel(ByHand)


BLOCKS, LAYERS = partial(everywhere, "blocks"), partial(everywhere, "model.layers")
ALL_LAYERS = range(LLMMicro.architecture["num_hidden_layers"])
FAULTS = {
    "across the batch": (BLOCKS(faulty.across_the_batch), ViTMicro, f"logits hardly differ|{SEEN}"),
    "across the batch, averaged": (BLOCKS(faulty.across_the_batch), Averaged, f"logits hardly differ|{SEEN}"),
    "across the batch of tokens": (BLOCKS(faulty.across_the_batch), tokens, SEEN),
    "across the samples of a causal model": (LAYERS(faulty.across_the_samples), LLMMicro, SEEN),
    "a causal mask": (BLOCKS(faulty.causal), ViTMicro, "its input gradient differs"),
    "no causal mask": (partial(faulty.not_causal, numbers=ALL_LAYERS), LLMMicro, LATER),
    "the next token": (LAYERS(faulty.sees_the_next), LLMMicro, LATER),
    "weights not copied": (faulty.own_weights, ViTMicro, "does not hold the numbers of blocks.0.attn.qkv.weight"),
    "weights not copied, averaged": (faulty.own_weights, Averaged, "not hold the numbers of blocks.0.attn.qkv.weight"),
    "an output that ignores its input": (BLOCKS(lambda _, f, x: f(torch.ones_like(x))), ViTMicro, NOTHING_ELSE),
    "not a number": (BLOCKS(faulty.output(lambda y: y * math.nan)), ViTMicro, "by nan"),
}


@pytest.mark.usefixtures("process_group")
class TestProve:
    @pytest.mark.parametrize("workload", [ViTMicro, Averaged, LLMMicro, tokens])
    def test_the_plain_model_agrees_with_itself_exactly(self, workload):
        found = of(workload=workload)
        assert found.passed, found.reason
        assert (found.logits_error, found.loss_error, found.input_gradient_error) == (0, 0, 0)
        assert (found.separation, found.leakage) == (1, 0)
        assert found.later_leakage == (0 if workload is LLMMicro else None)
        assert found.rounding_logits_error is found.rounding_input_gradient_error is None
        assert found.tolerance == BF16_TOLERANCE

    def test_the_gate_looks_at_the_first_tokens_of_long_samples_and_finds_there_what_it_finds_in_all(self):
        lengths = set()

        def counted(model):
            model.model.embed_tokens.register_forward_pre_hook(lambda _module, args: lengths.add(args[0].shape[1]))

        assert of(plant=counted, workload=Shortened).passed
        assert lengths == {32}
        assert LATER in of(plant=FAULTS["the next token"][0], workload=Shortened).reason

    def test_float32_passes_within_the_bf16_bounds_without_being_equal(self):
        found = of(BaselineFP32)
        assert found.passed
        assert 0 < found.logits_error < BF16_TOLERANCE.logits

    @pytest.mark.parametrize(("plant", "workload", "reason"), FAULTS.values(), ids=FAULTS)
    def test_what_computes_something_else_is_refused(self, plant, workload, reason):
        found = of(BaselineBF16, plant, workload)
        assert not found.passed
        assert re.search(reason, found.reason)
        if reason is NOTHING_ELSE:
            assert found.separation == 0
        if reason is LATER:
            assert found.later_leakage > BF16_TOLERANCE.max_leakage > found.leakage == 0
        assert (found.logits_error is None) == (reason == "by nan")
        if workload is Averaged and reason.endswith(SEEN):
            assert found.logits_error < BF16_TOLERANCE.logits, "leakage alone shows it in a shallow model"
            assert found.leakage > BF16_TOLERANCE.max_leakage
        if plant is FAULTS["the next token"][0]:
            assert found.logits_error < BF16_TOLERANCE.logits, "every other bound is kept"
            assert found.loss_error < BF16_TOLERANCE.loss
            assert found.input_gradient_error < BF16_TOLERANCE.input_gradient

    def test_tokens_that_meet_no_embedding_are_refused_with_the_remedy(self):
        with pytest.raises(MeasurementInvalid, match=r"no torch\.nn\.Embedding") as refusal:
            of(workload=tokens_by_hand)
        assert refusal.value.cause == "parity"


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


@torch.no_grad()
def other_angles(model):
    model.model.rotary_emb.inv_freq **= math.log(1e4) / math.log(5e5)


def other_heads(model):
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda _layer, _inputs, output: output.roll(32, -1))


@pytest.mark.usefixtures("process_group")
class TestDeep:
    """After many layers rounding adds up, so that bounds follow from what rounding alone does to the model."""

    @pytest.fixture(autouse=True)
    def gains_of_2048_wide(self, monkeypatch):
        monkeypatch.setattr(llama, "INITIAL_STD", 0.02 * math.sqrt(2048 / 128))

    def test_emulated_float8_is_as_far_off_as_rounding_alone(self):
        found = of(TorchAOFloat8, workload=DeepLlama)
        assert found.passed, found.reason
        assert found.input_gradient_error == pytest.approx(found.rounding_input_gradient_error, rel=0.2)
        assert found.logits_error == pytest.approx(found.rounding_logits_error, rel=0.2)
        assert found.rounding_input_gradient_error < found.tolerance.input_gradient < MOST

    @pytest.mark.parametrize(
        "fault",
        [
            other_angles,
            thorough_unless(False, other_heads),
            thorough_unless(False, partial(faulty.gate_and_up_exchanged, numbers=range(18))),
        ],
    )
    def test_a_fault_shows_beside_that_rounding(self, fault):
        found = of(TorchAOFloat8, fault, DeepLlama)
        assert not found.passed
        assert "its logits differ by" in found.reason
        assert "its input gradient differs by" in found.reason

    @pytest.mark.parametrize("model", [LLMMicro, thorough_unless(False, DeepLlama)])
    def test_steps_are_held_to_what_the_mode_states_where_less_rounding_is_explained(self, model):
        proof = parity.prove(TorchAOFloat8("tensorwise"), model(data="device"), rank=0, device=CPU)
        explained = proof.parity.tolerance.input_gradient
        assert (explained < FP8_TOLERANCE.input_gradient) == (model is LLMMicro)
        assert proof.of_steps.input_gradient == max(explained, FP8_TOLERANCE.input_gradient)


def complaints(measured):
    return view.judge(measured, BF16_TOLERANCE, gradient_is_zero=False)


def test_a_number_that_is_not_finite_fails_every_bound_and_the_bounds_themselves_still_pass():
    bounds = ("logits_error", "loss_error", "input_gradient_error", "separation", "leakage")
    reason = "; ".join(complaints(dict.fromkeys(bounds, math.nan)))
    assert all(word in reason for word in ("logits hardly differ", "see each other", "loss", "input gradient"))
    errors = {f"{name}_error": getattr(BF16_TOLERANCE, name) for name in ("logits", "loss", "input_gradient")}
    limits = {"separation": BF16_TOLERANCE.min_separation, "leakage": BF16_TOLERANCE.max_leakage}
    assert complaints(errors | limits) == []
