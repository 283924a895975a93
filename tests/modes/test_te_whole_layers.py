"""Transformer Engine's layer in the place of Llama's, and of a GPT's with each of its switches, and what each could get
wrong. Llama's weights are large, so that a fault of attention moves every logit.
"""

import re

import pytest
import torch
from modes import te_stand_in
from torch import nn

from fp8bench.modes.te_gpt import TEGPTLayer
from fp8bench.modes.te_llama import TELlamaLayer
from fp8bench.modes.transformer_engine import TEBF16, TEFP8, is_te
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.execution.step import announce
from fp8bench.worker.parity import prove
from fp8bench.worker.plain_weights import by_plain_names, gradient_of, ties, trained_weights
from fp8bench.worker.view import look
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.llama import LLMMicro

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stand_in", "process_group")]

CPU = torch.device("cpu")
SWITCHES = [None, "parallel-setup", "fused-qkv", "fused-qkv+fused-wgrad", "weight-cache"]
ALL = "fused-qkv+fused-wgrad+weight-cache"


class Micro(GPTLayerMicro):
    """Float32 throughout, without the rounding that hides small differences: autocast has no say in it."""

    def __init__(self, sequence_length=16):
        super().__init__(sequence_length=sequence_length, weight_dtype="float32")

    def build(self, device):
        model = super().build(device)
        model.autocast, plain = False, model.layer
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in plain.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.5 * torch.rand(parameter.shape, generator=generator))
        return model


class Plain(TEFP8):
    """te-fp8 without Transformer Engine's autocast: what the stand-in has no fp8 for."""

    forward_context = TEBF16.forward_context

    def __init__(self, **options):
        super().__init__("current", **options)


def converted(switches=None):
    mode = Plain(te_switches=switches)
    return mode, mode.convert(Micro().build(CPU))


class TestGate:
    @pytest.mark.parametrize("switches", [*SWITCHES, ALL])
    def test_every_switch_computes_the_layer_and_its_gradients(self, switches):
        found = prove(Plain(te_switches=switches), Micro(), 0, CPU).parity
        assert found.passed, found.reason
        assert (found.logits_error, found.weight_gradient_error) == pytest.approx((0, 0), abs=1e-4)
        assert (found.leakage, found.later_leakage) == (0, 0)

    def test_linear_layers_alone_compute_it_too_and_in_bf16_as_it_is_timed(self):
        found = prove(Plain(te_attention="sdpa"), Micro(), 0, CPU).parity
        assert found.passed, found.reason
        assert found.weight_gradient_error == pytest.approx(0, abs=1e-4)
        found = prove(TEBF16(te_switches="fused-qkv+fused-wgrad"), GPTLayerMicro(), 0, CPU).parity
        assert found.passed, found.reason
        assert 0 < found.weight_gradient_error < TEBF16.tolerance.input_gradient

    def test_a_gradient_that_never_reached_main_grad_is_found(self, monkeypatch):
        monkeypatch.setattr(te_stand_in._Fused, "backward", staticmethod(_without_wgrad))
        found = prove(Plain(te_switches="fused-qkv+fused-wgrad"), Micro(), 0, CPU).parity
        assert not found.passed
        assert re.search(r"the gradient of layer\.(qkv|proj|fc1|fc2)\.weight differs by 1 ", found.reason)
        assert found.input_gradient_error == pytest.approx(0, abs=1e-5), "nothing else shows it"

    def test_a_gradient_that_is_added_to_the_step_before_is_found(self, monkeypatch):
        monkeypatch.setattr(TEGPTLayer, "clear_gradients", lambda _layer: None)
        monkeypatch.setattr(te_stand_in._Fused, "forward", staticmethod(_never_overwriting))
        found = prove(Plain(te_switches=ALL), Micro(), 0, CPU).parity
        assert re.search(r"the gradient of layer\.(qkv|proj|fc1|fc2)\.weight differs", found.reason)

    def test_weights_of_a_stale_cache_are_found(self, monkeypatch):
        linear = te_stand_in._GEMMs.linear

        def stale(module, name, x, weight, bias, _is_first):
            module.__dict__.setdefault("kept", {}).setdefault(name, weight.detach() * 1.5)
            return linear(module, name, x, weight, bias, False)

        monkeypatch.setattr(te_stand_in._GEMMs, "linear", stale)
        assert not prove(Plain(te_switches="weight-cache"), Micro(), 0, CPU).parity.passed


def _without_wgrad(ctx, gradient):
    _, weight = ctx.saved_tensors
    of_bias = gradient.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
    return gradient @ weight, None, of_bias, None, None


def _never_overwriting(ctx, x, weight, bias, holder, _is_first):
    ctx.save_for_backward(x, weight)
    ctx.holder, ctx.overwrite = holder, False
    return nn.functional.linear(x, weight, bias)


class TestArguments:
    def test_what_the_layer_is_told_without_a_switch_and_with_each(self):
        _, model = converted()
        layer = model.layer.layer
        assert (layer.batch_first, layer.causal, layer.hidden_dropout, layer.attention_dropout) == (True, True, 0, 0)
        assert hasattr(layer.self_attention.layernorm_qkv, "query_weight")
        assert layer.alone == (False, False, False)
        assert not list(model.layer.accumulated())
        mode, model = converted("parallel-setup")
        assert model.layer.layer.alone == (True, True, True)
        assert mode.joined_alone
        _, model = converted("fused-qkv+fused-wgrad")
        beside = {name for name, weight in model.layer.layer.named_parameters() if hasattr(weight, "main_grad")}
        assert {name.rpartition(".")[2] for name in beside} == {"weight", "fc1_weight", "fc2_weight"}
        assert all(weight.main_grad.dtype == torch.float32 for weight in model.layer.accumulated())
        model = TEBF16().convert(GPTLayerMicro(weight_dtype="float16").build(CPU))
        assert {weight.dtype for weight in model.parameters()} == {torch.float16}

    def test_an_engine_that_names_queries_otherwise_is_refused(self, monkeypatch):
        class Renamed(te_stand_in.TransformerLayer):
            def __init__(self, **options):
                super().__init__(**options)
                del self.self_attention.layernorm_qkv.key_weight

        monkeypatch.setattr(te_stand_in, "TransformerLayer", Renamed)
        with pytest.raises(ModeUnavailable, match="under other names"):
            converted()


def plain_gradients(mode, model):
    shapes = {name: weight.shape for name, weight in trained_weights(Micro().build(CPU)).items()}
    gradients = {name: gradient_of(weight) for name, weight in trained_weights(model).items()}
    return by_plain_names(ties(mode, model), gradients, shapes)


class TestMicroBatches:
    def gradients(self, switches, pieces):
        mode, model = converted(switches)
        workload, batch = Micro(), next(Micro().batches(4, 0, CPU))
        for number, (x, target) in enumerate(zip(*(t.chunk(pieces) for t in batch), strict=True)):
            announce(mode, number == 0)
            (workload.loss(model, batch._replace(inputs=x, targets=target)) / pieces).backward()
        return plain_gradients(mode, model)

    @pytest.mark.parametrize("switches", ["fused-qkv+fused-wgrad", "weight-cache", ALL])
    def test_gradients_of_several_are_those_of_the_whole_batch(self, switches):
        whole, summed = self.gradients(None, 1), self.gradients(switches, 2)
        torch.testing.assert_close(summed, whole, rtol=1e-4, atol=1e-4, check_dtype=False)

    def test_the_next_step_overwrites_what_the_last_one_left(self):
        mode, model = converted("fused-qkv+fused-wgrad")
        workload, batch = Micro(), next(Micro().batches(2, 0, CPU))
        found = []
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            announce(mode, True)
            workload.loss(model, batch).backward()
            found.append({name: one.clone() for name, one in plain_gradients(mode, model).items()})
        torch.testing.assert_close(*found)

    @pytest.mark.parametrize(("switches", "wanted"), [(None, [None, None]), ("weight-cache", [True, False])])
    def test_later_ones_are_told_so_only_with_the_cache(self, switches, wanted):
        mode, model = converted(switches)
        told = []
        model.layer.layer.register_forward_pre_hook(
            lambda _module, _inputs, options: told.append(options["is_first_microbatch"]), with_kwargs=True
        )
        for first in (True, False):
            announce(mode, first)
            look(model, Micro(), next(Micro().batches(2, 0, CPU)))
        assert told == wanted


def sharp_model():
    """With weights of every kind: norms are not all ones, and rotations not of the usual base."""
    workload = LLMMicro(data="device", sequence_length=32).resized(rope_theta=500_000)
    model = workload.build(CPU)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return workload, model


@pytest.mark.parametrize(("attention", "kind", "number"), [("te", "LayerNormLinear", 2), ("sdpa", "Linear", 14)])
def test_both_ways_compute_llamas_layer_pass_the_gate_and_leave_head_and_embedding_plain(attention, kind, number):
    workload, model = sharp_model()
    batch = next(workload.batches(2, 0, CPU))
    with torch.no_grad():
        # In float32, without the bf16 that hides small differences.
        plain = workload.logits(model, batch)
        model = TEBF16(te_attention=attention).convert(model)
        found = workload.logits(model, batch)
    assert (found - plain).norm() < 1e-5 * plain.norm()
    assert sum(is_te(one, kind) for one in model.modules()) == number
    assert isinstance(model.lm_head, nn.Linear)
    assert isinstance(model.model.embed_tokens, nn.Embedding)
    found = prove(TEBF16(te_attention=attention), LLMMicro(data="device"), 0, CPU).parity
    assert found.passed, found.reason
    assert (found.leakage, found.later_leakage) == (0, 0)


def test_the_layer_is_told_everything_that_its_defaults_get_wrong_and_refuses_a_mask():
    layer, other = TEBF16().convert(sharp_model()[1]).model.layers
    assert isinstance(layer, TELlamaLayer)
    assert layer.angles is other.angles
    inner = layer.layer
    assert (inner.batch_first, inner.causal, inner.hidden_dropout, inner.attention_dropout) == (True, True, 0, 0)
    assert inner.self_attention.rows == [64, 32, 32]
    assert inner.self_attention.layernorm_qkv.eps == inner.layernorm_mlp.eps == 1e-6
    assert inner.layernorm_mlp.layer_norm_bias is inner.layernorm_mlp.fc1_bias is None
    with pytest.raises(ModeUnavailable, match="attention mask"):
        layer(torch.zeros(1, 32, 64), attention_mask=torch.ones(1, 1, 32, 32, dtype=torch.bool))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (lambda layer, _: setattr(layer.self_attn.config, "hidden_act", "gelu"), "the activation gelu"),
        (lambda layer, _: setattr(layer.self_attn, "is_causal", False), "not causal"),
        (lambda layer, _: setattr(layer.self_attn, "o_proj", nn.Linear(64, 64)), "biases"),
        (lambda layer, _: setattr(layer.input_layernorm, "variance_epsilon", 1e-3), "two different norm epsilons"),
        (lambda layer, _: setattr(layer, "input_layernorm", nn.LayerNorm(64)), "a norm that is not LlamaRMSNorm"),
        (lambda _, rotation: setattr(rotation, "rope_type", "dynamic"), "rotated by 'dynamic'"),
    ],
)
def test_what_the_converted_layer_would_not_compute_is_refused_by_name(changed, named):
    _, model = sharp_model()
    changed(model.model.layers[1], model.model.rotary_emb)
    with pytest.raises(ModeUnavailable, match=named):
        TEBF16().convert(model)
