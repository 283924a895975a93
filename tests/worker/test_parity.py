"""The gate on real models: right conversions pass, and what computes something else is refused with its reason, which
names the block or the weight.
"""

import math
import re
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from kept import thorough_unless
from torch.nn import functional as F
from worker import faulty_blocks as faulty
from worker.faulty_blocks import called, filled, frozen, gradients, llama_with, output, refusal, replaced, stale
from worker.plain_models import Attending, ByHand, DeepLlama, PlainModel

from fp8bench.modes.baseline import BaselineBF16
from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.worker import judged, parity, view
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
    return faulty.verdict(base, plant, workload(data="device") if isinstance(workload, type) else workload)


TOKENS = PlainModel(Attending)
BLOCKS, LAYERS = partial(faulty.everywhere, "blocks"), partial(faulty.everywhere, "model.layers")
ALL_LAYERS = range(LLMMicro.architecture["num_hidden_layers"])
FAULTS = {
    "across the batch": (BLOCKS(faulty.across_the_batch), ViTMicro, f"logits hardly differ|{SEEN}"),
    "across the batch, averaged": (BLOCKS(faulty.across_the_batch), Averaged, f"logits hardly differ|{SEEN}"),
    "across the batch of tokens": (BLOCKS(faulty.across_the_batch), TOKENS, SEEN),
    "across the samples of a causal model": (LAYERS(faulty.across_the_samples), LLMMicro, SEEN),
    "a causal mask": (BLOCKS(faulty.causal), ViTMicro, "its input gradient differs"),
    "no causal mask": (partial(faulty.not_causal, numbers=ALL_LAYERS), LLMMicro, LATER),
    "the next token": (LAYERS(faulty.sees_the_next), LLMMicro, LATER),
    "weights not copied": (faulty.own_weights, ViTMicro, "does not hold the numbers of blocks.0.attn.qkv.weight"),
    "weights not copied, averaged": (faulty.own_weights, Averaged, "not hold the numbers of blocks.0.attn.qkv.weight"),
    "an output that ignores its input": (BLOCKS(lambda _, f, x: f(torch.ones_like(x))), ViTMicro, NOTHING_ELSE),
    "not a number": (BLOCKS(output(lambda y: y * math.nan)), ViTMicro, "by nan"),
}


BEYOND = {
    "MLPs left out": (faulty.within(32, "mlp", torch.zeros_like), "mlp"),
    "a window of attention": (faulty.window_of(32), "self_attn"),
    "other angles": (faulty.within(32, "rotary_emb", lambda y: y.flip(1)), "what is given to model.layers.0"),
}
"""Each is right in samples of 32 tokens."""


@pytest.mark.usefixtures("process_group")
class TestProve:
    @pytest.mark.parametrize("workload", [ViTMicro, Averaged, LLMMicro, TOKENS])
    def test_the_plain_model_agrees_with_itself_exactly(self, workload):
        found = of(workload=workload)
        assert found.passed, found.reason
        assert (found.logits_error, found.loss_error, found.input_gradient_error) == (0, 0, 0)
        assert (found.separation, found.leakage) == (1, 0)
        assert found.later_leakage == (0 if workload is LLMMicro else None)
        assert found.rounding_logits_error is found.rounding_input_gradient_error is None
        assert found.tolerance == BF16_TOLERANCE

    @pytest.mark.parametrize("mode", [BaselineBF16, TorchAOFloat8])
    def test_the_whole_model_sees_the_first_tokens_of_long_samples_and_blocks_see_all(self, mode):
        shapes = set()

        def counted(model):
            model.model.embed_tokens.register_forward_pre_hook(lambda _module, args: shapes.add(tuple(args[0].shape)))

        found = of(mode, counted, Shortened)
        assert found.passed, found.reason
        assert (found.blocks.tokens, found.blocks.of_tokens) == (64, 64)
        assert shapes == {(2, 32), (1, 64)}
        assert LATER in of(plant=FAULTS["the next token"][0], workload=Shortened).reason

    @pytest.mark.parametrize(("plant", "named"), BEYOND.values(), ids=BEYOND)
    @pytest.mark.parametrize("mode", [BaselineBF16, TorchAOFloat8])
    def test_a_fault_beyond_the_tokens_that_the_whole_model_sees_is_refused(self, mode, plant, named):
        assert named in refusal(mode, plant, Shortened(data="device"))

    def test_a_sample_is_seen_as_far_as_there_is_room_and_the_record_says_how_far(self, monkeypatch):
        monkeypatch.setattr(parity, "free_bytes", lambda _device: 0)
        found = of(plant=BEYOND["MLPs left out"][0], workload=Shortened)
        assert found.passed
        assert (found.blocks.tokens, found.blocks.of_tokens) == (32, 64)
        assert of(workload=LLMMicro).blocks.of_tokens is None, "the whole model saw all tokens"

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
            of(workload=PlainModel(ByHand))
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


LAYER = "model.layers.7"


class OfTenLayers(DeepLlama):
    """Each block is compared by itself: how many there are behind the one with the fault plays no part."""

    architecture = {**DeepLlama.architecture, "num_hidden_layers": 10}  # noqa: RUF012


DEEP = {
    "all weights frozen but the last": (frozen(lambda names: names[:-1]), "does not train model.embed_tokens.weight"),
    "one frozen": (frozen(lambda names: [f"{LAYER}.mlp.up_proj.weight"]), f"does not train {LAYER}.mlp.up_proj.weight"),
    "embedding frozen": (frozen(lambda names: names[:1]), "does not train model.embed_tokens.weight"),
    "weight gradients of zero": (gradients("_proj", torch.zeros_like), "the gradient of model.layers"),
    "one weight gradient of zero": (gradients(f"{LAYER}.self_attn.k", torch.zeros_like), f"{LAYER}.self_attn.k_proj"),
    "no weight gradients": (faulty.weight_detached("_proj"), "the gradient of model.layers"),
    "no weight gradient in one layer": (faulty.weight_detached(f"{LAYER}.mlp.down_proj"), f"{LAYER}.mlp.down_proj"),
    "a weight gradient halved": (gradients(f"{LAYER}.mlp.up_proj", lambda g: g / 2), f"{LAYER}.mlp.up_proj"),
    "a weight gradient doubled": (gradients(f"{LAYER}.mlp.up_proj", lambda g: 2 * g), f"{LAYER}.mlp.up_proj"),
    "the gradient halved": (replaced(f"{LAYER}.mlp", faulty.gradient_times(0.5)), f"the gradient of {LAYER}.mlp"),
    "the gradient doubled": (replaced(LAYER, faulty.gradient_times(2.0)), LAYER),
    "the gradient doubled between": (
        llama_with(at_7=lambda layer, x, r: called(layer, faulty.Scaled.apply(x, 2.0), r)),
        f"the gradient given to {LAYER[:-1]}6",
    ),
    "an output detached": (replaced(LAYER, output(torch.detach)), f"its block '{LAYER}' gives"),
    "a block that is nothing": (replaced(LAYER, faulty.identity), LAYER),
    "an MLP that is nothing": (replaced(f"{LAYER}.mlp", output(torch.zeros_like)), f"{LAYER}.mlp"),
    "an MLP that is its input": (replaced(f"{LAYER}.mlp", faulty.identity), f"the output of {LAYER}"),
    "an attention that is nothing": (
        replaced(f"{LAYER}.self_attn", output(lambda both: (torch.zeros_like(both[0]), None))),
        f"{LAYER}.self_attn",
    ),
    "a block skipped": (llama_with({7: ()}), f"leaves out {LAYER}"),
    "a block called twice": (llama_with({7: (7, 7)}), f"calls {LAYER} where the plain model"),
    "the last block called twice": (llama_with({9: (9, 9)}), "calls model.layers.9 where"),
    "two blocks exchanged": (llama_with({7: (8,), 8: (7,)}), "where the plain model calls model.layers.7"),
    "two blocks in parallel": (faulty.parallel, f"the gradient given to {LAYER}"),
    "a block without gradients": (llama_with(at_7=torch.no_grad()(called)), "what model.layers.8 is given"),
    "an input detached": (llama_with(at_7=lambda layer, x, r: called(layer, x.detach(), r)), f"what {LAYER} is given"),
    "a part detached": (
        llama_with(at_7=lambda layer, x, r: x + (called(layer, x, r) - x).detach()),
        f"the gradient given to {LAYER}",
    ),
    "blocks tied": (
        lambda model: setattr(model.model.layers, "8", model.model.layers[7]),
        "does not train model.layers.8",
    ),
    "blocks tied behind their names": (
        lambda model: setattr(model.model.layers[8], "forward", model.model.layers[7].forward),
        "model.layers.8",
    ),
    "angles of another position": (
        llama_with(at_7=lambda layer, x, r: called(layer, x, tuple(one.roll(1, 1) for one in r))),
        f"what is given to {LAYER}",
    ),
    "a mask for one layer": (
        llama_with(
            at_7=lambda layer, x, r: called(layer, x, r, attention_mask=torch.eye(x.shape[1]).bool()[None, None])
        ),
        f"what {LAYER} is given",
    ),
    "no rotation in one layer": (replaced(LAYER, faulty.no_rotation), LAYER),
    "gate for up": (faulty.gate_and_up_exchanged, LAYER),
    "no causal mask in one layer": (faulty.not_causal, LAYER),
    "attention across the batch in one layer": (replaced(LAYER, faulty.across_the_samples), LAYER),
    "dropout in a block": (replaced(f"{LAYER}.mlp", output(lambda y: F.dropout(y, 0.1))), LAYER),
    "a gain that is ignored": (
        replaced(f"{LAYER}.input_layernorm", lambda _, before, x: F.rms_norm(x, x.shape[-1:], None, 1e-6)),
        f"{LAYER}.input_layernorm",
    ),
    "a gain that was not copied": (filled(f"{LAYER}.input_layernorm.weight", 1), f"{LAYER}.input_layernorm.weight"),
    "no last norm": (replaced("model.norm", faulty.identity), "model.norm"),
    "no call of the last norm": (
        llama_with(head=lambda model, x, targets: model.lm_head(x, targets)),
        "leaves out model.norm",
    ),
    "the loss doubled": (llama_with(head=faulty.scaled_loss), "the loss"),
    "the loss of other targets": (llama_with(head=faulty.loss_of_others), "what is given to lm_head"),
    "a penalty in the loss": (llama_with(head=faulty.with_penalty), f"{LAYER}.mlp.up_proj.weight beside"),
    "weights of the first pass": (stale(f"{LAYER}.mlp.up_proj"), LAYER),
    "weights of the conversion": (stale(f"{LAYER}.mlp.up_proj", at_once=True), LAYER),
}


@torch.no_grad()
def other_angles(model):
    model.model.rotary_emb.inv_freq **= math.log(1e4) / math.log(5e5)


def other_heads(model):
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda _layer, _inputs, output: output.roll(32, -1))


@pytest.fixture(scope="class")
def plain_once():
    """The plain model is looked at once: beside each fault it is the same."""
    plainly, found = parity._plainly, []

    def once(mode, model, *given):
        if not found:
            found.append(plainly(mode, model, *given))
        return replace(found[0], model=model)

    with mock.patch.object(parity, "_plainly", once):
        yield


@pytest.fixture
def gains_of_2048_wide(monkeypatch):
    monkeypatch.setattr(llama, "INITIAL_STD", 0.02 * math.sqrt(2048 / 128))


@pytest.mark.thorough
@pytest.mark.usefixtures("process_group", "gains_of_2048_wide", "plain_once")
class TestFaultsOfDeepModels:
    @pytest.mark.parametrize(("plant", "named"), DEEP.values(), ids=DEEP)
    def test_a_fault_in_float8_is_named(self, plant, named):
        assert named in refusal(TorchAOFloat8, plant, OfTenLayers(data="device"))


@pytest.mark.usefixtures("process_group", "gains_of_2048_wide")
class TestDeep:
    """After many layers rounding adds up, so that bounds follow from what rounding alone does to the model."""

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


def without_bias(layer, _before, x):
    return F.linear(x, layer.weight)


def without_shift(norm, _before, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, None, norm.eps)


VIT = {
    "a bias dropped": (replaced("blocks.1.mlp.fc1", without_bias), "blocks.1.mlp.fc1.bias"),
    "a bias not copied": (filled("blocks.1.mlp.fc1.bias", 0), "blocks.1.mlp.fc1.bias"),
    "a shift dropped": (replaced("blocks.1.norm2", without_shift), "blocks.1.norm2.bias"),
    "a shift not copied": (filled("blocks.1.norm2.bias", 0), "blocks.1.norm2.bias"),
    "fresh norms": (faulty.fresh_norms, "blocks.0.norm1.weight"),
    "another epsilon": (lambda model: setattr(model.blocks[1].norm2, "eps", math.e), "blocks.1"),
    "a tiny LayerScale": (replaced("blocks.1", lambda _, before, x: x + 1e-5 * (before(x) - x)), "blocks.1"),
    "a causal mask in one layer": (replaced("blocks.1", faulty.causal), "blocks.1"),
    "attention across the batch in one layer": (replaced("blocks.1", faulty.across_the_batch), "blocks.1"),
    "no positions": (
        lambda model: setattr(model, "_pos_embed", lambda x: torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)),
        "what is given to blocks.0",
    ),
    "positions untrained": (faulty.positions_untrained, "the gradient of pos_embed"),
    "no class token": (faulty.without_class_token, "the gradient of cls_token"),
    "a last norm that is nothing": (replaced("norm", faulty.identity), "norm"),
    "the queries of packed weights untrained": (
        gradients("blocks.1.attn.qkv.weight", faulty.first_rows_untrained),
        "blocks.1.attn.qkv.weight in rows",
    ),
    "a gradient halved": (gradients("blocks.1.mlp.fc1.weight", lambda g: g / 2), "blocks.1.mlp.fc1.weight"),
    "a gradient doubled": (gradients("blocks.1.mlp.fc1.weight", lambda g: 2 * g), "blocks.1.mlp.fc1.weight"),
    "a gradient of the head halved": (gradients("head.weight", lambda g: g / 2), "head.weight"),
}

GPT = {
    "a bias dropped": (replaced("layer.fc1", without_bias), "layer.fc1.bias"),
    "a shift dropped": (replaced("layer.ln2", without_shift), "layer.ln2.bias"),
    "an MLP that is nothing": (replaced("layer.fc2", output(torch.zeros_like)), "layer.fc2"),
    "a weight gradient halved": (gradients("layer.qkv.weight", lambda g: g / 2), "layer.qkv.weight"),
    "the queries of packed weights untrained": (
        gradients("layer.qkv.weight", faulty.first_rows_untrained),
        "layer.qkv.weight",
    ),
}


@pytest.mark.usefixtures("process_group")
class TestFaults:
    @pytest.mark.parametrize("mode", [BaselineBF16, thorough_unless(False, TorchAOFloat8)])
    @pytest.mark.parametrize(("plant", "named"), VIT.values(), ids=VIT)
    def test_in_a_vision_transformer(self, mode, plant, named):
        assert named in refusal(mode, plant, ViTMicro(data="device"))

    @pytest.mark.parametrize(("plant", "named"), GPT.values(), ids=GPT)
    def test_in_a_layer_in_float8(self, plant, named):
        assert named in refusal(TorchAOFloat8, plant, GPTLayerMicro(data="device"))

    @pytest.mark.parametrize("cheats_first", [True, False])
    @pytest.mark.parametrize("reuses_weights", [True, False])
    def test_in_one_of_the_passes_that_a_mode_tells_apart(self, reuses_weights, cheats_first):
        class TellsApart(BaselineBF16):
            reuses = reuses_weights

            def micro_batch(self, first):
                TellsApart.first = first

        def cheat(_module, before, x):
            return x if TellsApart.first == cheats_first else before(x)

        def plant(model):
            for number in range(len(model.blocks)):
                replaced(f"blocks.{number}.mlp", cheat)(model)

        assert "blocks." in refusal(TellsApart, plant, ViTMicro(data="device"))


def test_errors_of_groups_of_rows_are_those_of_each_group_by_itself():
    plain, other = torch.randn(100, 3, 7), torch.randn(100, 3, 7)
    plain[:9] = 0
    [found, missing] = judged.errors_of_groups(plain, [other, torch.zeros_like(plain)])
    for number, (mine, theirs) in enumerate(zip(plain.tensor_split(12), other.tensor_split(12), strict=True)):
        error = float((theirs - mine).norm() / mine.norm()) if mine.any() else math.inf
        assert found[number] == pytest.approx(error, rel=1e-5)
    assert missing == [0.0] + [pytest.approx(1)] * 11
