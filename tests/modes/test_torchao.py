"""torchao's conversion: which layers, under which recipe, and that none is an error."""

import pytest
import torch
from torch import nn

from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def of_micro(recipe, **options):
    mode = TorchAOFloat8(recipe, **options)
    return mode.evidence(mode.convert(ViTMicro().build(CPU)))


def test_every_layer_but_the_head_is_converted_with_its_own_weights():
    model = ViTMicro().build(CPU)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mode = TorchAOFloat8()
    converted = mode.convert(model)
    evidence = mode.evidence(converted)
    assert (evidence["converted_layers"], evidence["total_layers"], evidence["emulated"]) == (8, 9, True)
    assert type(converted.head) is nn.Linear
    assert all(torch.equal(before[name], parameter) for name, parameter in converted.named_parameters())
    llama = mode.evidence(mode.convert(LLMMicro().build(CPU)))
    assert (llama["converted_layers"], llama["total_layers"]) == (14, 15)


def test_layers_are_chosen_by_name_and_what_came_of_it_is_on_record():
    found = of_micro("tensorwise,layers=mlp")
    assert (found["converted_layers"], found["recipe"], found["layers"]) == (4, "tensorwise", "mlp")
    assert found["layers_in_fp8"] == ["blocks.*.mlp.fc1 x 2", "blocks.*.mlp.fc2 x 2"]
    assert found["layers_left_in_bf16"] == ["blocks.*.attn.qkv x 2", "blocks.*.attn.proj x 2", "head x 1"]
    listed = of_micro("rowwise,layers=auto", fp8_layer_names=("blocks.*.attn.qkv",))
    assert listed["layers_in_fp8"] == ["blocks.*.attn.qkv x 2"]
    assert ["dyn_ten" in found["cast_configs"][0], "dyn_axs" in listed["cast_configs"][0]] == [True, True]


def test_a_choice_or_a_model_without_a_layer_to_convert_and_a_recipe_that_cannot_be_emulated_are_refused():
    with pytest.raises(ModeUnavailable, match="layers=mpl takes no linear layer") as caught:
        of_micro("tensorwise,layers=mpl")
    assert "blocks.*.attn.qkv" in caught.value.remedy
    with pytest.raises(ModeUnavailable, match="rowwise_with_gw_hp"):
        TorchAOFloat8("rowwise_with_gw_hp").check(CPU)
    with pytest.raises(ModeUnavailable, match="nothing would run in fp8: mlp is 20 x 32, no multiples of 16"):
        TorchAOFloat8().convert(nn.ModuleDict({"head": nn.Linear(32, 10), "mlp": nn.Linear(20, 32)}))
    model = nn.ModuleDict({"small": nn.Linear(1024, 1024), "wide": nn.Linear(1024, 2048)})
    with pytest.raises(ModeUnavailable, match="torchao's own rule takes none of the model's 2 linear layers"):
        TorchAOFloat8("rowwise,layers=torchao").convert(model)
    mode = TorchAOFloat8("tensorwise,layers=torchao")
    assert mode.evidence(mode.convert(model))["layers_in_fp8"] == ["wide x 1"]
