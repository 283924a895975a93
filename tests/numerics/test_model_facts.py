"""What a model is made of, and what each mode can take of it."""

import pytest
from builders import config

from fp8bench import registry
from fp8bench.cli.list import facts_document
from fp8bench.numerics.model_facts import answer, facts_of
from fp8bench.schema.errors import UsageError
from fp8bench.schema.model import Asked
from fp8bench.tables import render

pytestmark = pytest.mark.slow


def facts(name, **sizes):
    return facts_of(registry.load(registry.find_workload(name))(data="device", **sizes))


def answered(workload, *modes, **settings):
    base = {"workload": workload, "device": "cpu", "world_size": 1, "batch_size": 16, **settings}
    recipes = {"torchao-float8": "tensorwise", "te-fp8": "current"}
    return answer(Asked(configs=tuple(config(**base, mode=mode, recipe=recipes.get(mode)) for mode in modes)))


def test_of_a_vit_all_layers_but_the_head_are_fp8_and_blocks_are_whole_as_the_layer_of_a_gpt():
    found = facts("vit-micro")
    assert (found.linear_layers, found.fp8_layers, found.transformer_engine.blocks) == (9, 8, 2)
    assert 0.5 < found.fp8_share < 1
    assert [(one.layers, one.number) for one in found.groups][-1] == (("head",), 1)
    found = facts("gpt-layer-micro")
    assert (found.sizes["weight_dtype"], found.fp8_layers, found.transformer_engine.blocks) == ("bfloat16", 4, 1)
    found = answered("vit-micro,depth=3", "baseline-bf16").facts
    assert (found.workload, found.sizes["depth"], found.transformer_engine.blocks) == ("vit-micro,depth=3", 3, 3)


@pytest.mark.parametrize("name", ["vit-micro,dept=3", "llm-micro,num_attention_heads=3", "timm:convnext_atto,depth=3"])
def test_sizes_that_make_no_model_are_wrong_usage_and_not_a_refusal_of_the_machine(name):
    found = answered(name, "baseline-bf16")
    assert (found.facts, type(found.refusal.error())) == (None, UsageError)


@pytest.mark.thorough
def test_of_a_convnext_the_mlps_are_taken_layer_by_layer():
    found = facts("timm:convnext_tiny", image_size=32)
    assert (found.linear_layers, found.fp8_layers) == (37, 36)
    parts = found.transformer_engine
    assert (parts.blocks, parts.linears) == (0, 36)
    assert 0.9 < found.fp8_share < 1

    shown = render.render(facts_document(found), "plain")
    assert "fp8: 36 of 37 linear layers can go to fp8, 9" in shown
    assert "te modes: 36 te.Linear and 18 te.LayerNorm layer by layer" in shown
    assert "the head stays bf16 in every mode" in shown


def test_a_model_without_a_layer_to_convert_is_refused_by_the_modes_that_convert():
    found = answered("timm:convnext_atto", "baseline-bf16", "torchao-float8", "te-bf16", image_size=32)
    baseline, *refused = found.modes
    assert baseline is None
    why = "head.fc gives the logits, and stays plain; 40 Conv2d layers are not linear layers"
    assert [why in one.what for one in refused] == [True, True]
    assert found.facts.fp8_layers == 0


def test_a_batch_that_fp8_cannot_take_is_refused_by_fp8_modes_alone_and_a_model_without_proof_by_all():
    found = answered("timm:vit_tiny_patch16_224", "te-bf16", "te-fp8", image_size=32, batch_size=3)
    assert found.modes[0] is None
    assert found.modes[1].remedy == "Use a --batch-size that is a multiple of 16"
    assert "20 BatchNorm layers" in answered("timm:resnet18", "baseline-bf16", image_size=32).refusal.what
