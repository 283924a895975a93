"""torchao's conversion: which layers, under which recipe, and that none is an error."""

import pytest
import torch
from torch import nn

from fp8bench.modes.torchao import TorchAOFloat8, convertible
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


def test_the_recipe_that_cannot_be_emulated_is_unavailable_on_a_cpu():
    with pytest.raises(ModeUnavailable, match="rowwise_with_gw_hp"):
        TorchAOFloat8("rowwise_with_gw_hp").check(CPU)
