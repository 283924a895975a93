"""Transformer Engine's layers in Llama. Weights are large, so that a fault of attention moves every logit."""

import pytest
import torch
from torch import nn

from fp8bench.modes.te_llama import TELlamaLayer
from fp8bench.modes.transformer_engine import TEBF16, is_te
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.parity import prove
from fp8bench.workloads.llama import LLMMicro

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stand_in")]

CPU = torch.device("cpu")
SHARP = 0.25


def sharp_model():
    """With weights of every kind: norms are not all ones."""
    workload = LLMMicro(data="device", sequence_length=32)
    model = workload.build(CPU)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, SHARP, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return workload, model


@pytest.mark.usefixtures("process_group")
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
    layer = TEBF16().convert(sharp_model()[1]).model.layers[0]
    assert isinstance(layer, TELlamaLayer)
    inner = layer.layer
    assert (inner.batch_first, inner.causal, inner.hidden_dropout, inner.attention_dropout) == (True, True, 0, 0)
    assert inner.self_attention.rows == [64, 32, 32]
    assert inner.self_attention.layernorm_qkv.eps == inner.layernorm_mlp.eps == 1e-6
    assert inner.layernorm_mlp.layer_norm_bias is inner.layernorm_mlp.fc1_bias is None
    with pytest.raises(ModeUnavailable, match="attention mask"):
        layer(torch.zeros(1, 32, 64), attention_mask=torch.ones(1, 1, 32, 32, dtype=torch.bool))


def test_the_rotation_has_the_models_own_base():
    class Wide(LLMMicro):
        architecture = {**LLMMicro.architecture, "rope_theta": 500_000}  # noqa: RUF012

    layers = TEBF16().convert(Wide(sequence_length=32).build(CPU)).model.layers
    assert layers[0].angles is layers[1].angles
    assert layers[0].angles.shape == (32, 1, 1, 16)
    # Pair 1 of 8, at position 31.
    assert float(layers[0].angles[31, 0, 0, 1]) == pytest.approx(31 * 500000.0 ** (-2 / 16), rel=1e-5)


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
