"""torchao's conversion: which layers, under which recipe, and that none is an error."""

import pytest
import torch
from torch import nn

from fp8bench.modes.torchao import TorchAOFloat8, convertible, require_convertible
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_every_layer_but_the_head_is_converted_with_its_own_weights():
    model = ViTMicro().build(CPU)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mode = TorchAOFloat8()
    converted = mode.convert(model)
    evidence = mode.evidence(converted)
    assert (evidence["converted_layers"], evidence["total_layers"], evidence["emulated"]) == (8, 9, True)
    assert type(converted.head) is nn.Linear
    assert all(torch.equal(before[name], parameter) for name, parameter in converted.named_parameters())


@pytest.mark.parametrize(
    ("layer", "fqn", "goes"),
    [
        (nn.Linear(32, 64), "blocks.0.mlp.fc1", True),
        (nn.Linear(32, 64), "head", False),
        (nn.Linear(32, 64), "model.lm_head", False),
        (nn.Linear(32, 60), "fc", False),
        (nn.Linear(30, 64), "fc", False),
        (nn.LayerNorm(32), "norm", False),
    ],
)
def test_heads_and_dimensions_that_fp8_kernels_cannot_take_stay_plain(layer, fqn, goes):
    assert convertible(layer, fqn) is goes


def test_a_model_with_nothing_to_convert_is_an_error():
    with pytest.raises(ModeUnavailable, match="none of the model's 1 linear layers"):
        TorchAOFloat8().convert(nn.Sequential(nn.Linear(10, 10)))


@pytest.mark.parametrize(("recipe", "casts"), [("tensorwise", "ten"), ("rowwise", "axs")])
def test_the_casts_in_the_evidence_are_those_of_the_recipe(recipe, casts):
    mode = TorchAOFloat8(recipe)
    [found] = mode.evidence(mode.convert(ViTMicro().build(CPU)))["cast_configs"]
    assert f"dyn_{casts}" in found


def test_layers_are_chosen_by_name_and_what_came_of_it_is_on_record():
    mode = TorchAOFloat8("tensorwise,layers=mlp")
    found = mode.evidence(mode.convert(ViTMicro().build(CPU)))
    assert (found["converted_layers"], found["recipe"], found["layers"]) == (4, "tensorwise", "mlp")
    assert found["layers_in_fp8"] == ["blocks.*.mlp.fc1 x 2", "blocks.*.mlp.fc2 x 2"]
    assert found["layers_left_in_bf16"] == ["blocks.*.attn.qkv x 2", "blocks.*.attn.proj x 2", "head x 1"]


def test_a_list_of_the_launchers_is_obeyed():
    mode = TorchAOFloat8("rowwise,layers=auto", fp8_layer_names=("blocks.*.attn.qkv",))
    assert mode.evidence(mode.convert(ViTMicro().build(CPU)))["layers_in_fp8"] == ["blocks.*.attn.qkv x 2"]


@pytest.mark.parametrize(("recipe", "taken"), [("tensorwise", ["wide"]), ("rowwise", [])])
def test_torchaos_own_rule_leaves_small_shapes_out(recipe, taken):
    model = nn.ModuleDict({"small": nn.Linear(1024, 1024), "wide": nn.Linear(1024, 2048)})
    mode = TorchAOFloat8(f"{recipe},layers=torchao")
    if taken:
        assert mode.evidence(mode.convert(model))["layers_in_fp8"] == ["wide x 1"]
    else:
        with pytest.raises(ModeUnavailable, match="torchao's own rule takes none of the model's 2 linear layers"):
            mode.convert(model)


def test_a_choice_that_matches_no_layer_is_refused_with_some():
    with pytest.raises(ModeUnavailable, match="layers=mpl takes no linear layer") as caught:
        TorchAOFloat8("tensorwise,layers=mpl").convert(ViTMicro().build(CPU))
    assert "blocks.*.attn.qkv" in caught.value.remedy


def test_the_recipe_that_cannot_be_emulated_is_unavailable_on_a_cpu():
    with pytest.raises(ModeUnavailable, match="rowwise_with_gw_hp"):
        TorchAOFloat8("rowwise_with_gw_hp").check(CPU)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ({"head": nn.Linear(32, 16), "conv": nn.Conv2d(3, 8, 1)}, "head gives the logits, and stays plain; 1 Conv2d "),
        ({"head": nn.Linear(32, 10), "mlp": nn.Linear(20, 32)}, "mlp is 20 x 32, no multiples of 16"),
        ({"conv": nn.Conv2d(3, 8, 1)}, "it has no linear layer; 1 Conv2d layers are not linear layers"),
    ],
)
def test_a_model_without_a_layer_to_convert_is_refused_with_a_layer_and_the_reason(layers, why):
    with pytest.raises(ModeUnavailable) as refused:
        require_convertible(nn.ModuleDict(layers))
    assert f"so nothing would run in fp8: {why}" in refused.value.what
