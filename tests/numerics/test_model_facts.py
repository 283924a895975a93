"""What a model is made of, which products its linear layers make, and what each mode can take of it."""

import pytest
import torch
from builders import config
from torch import Tensor, nn

from fp8bench import registry
from fp8bench.cli.list import facts_document
from fp8bench.numerics.model_facts import answer, facts_of, fold, linear_gemms
from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import Shape
from fp8bench.schema.model import Asked
from fp8bench.tables import render
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTHuge

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


class Made:
    """A workload of any model. Its inputs are [batch, *tail]."""

    name = "made"
    unit = "samples"

    def __init__(self, make, tail=(32,)):
        self._make, self._tail = make, tail

    def build(self, device):
        with device:
            return self._make()

    def batches(self, batch_size, rank, device):
        while True:
            yield Batch(torch.zeros(batch_size, *self._tail), torch.zeros(batch_size, dtype=torch.int64))

    def loss(self, model, batch):
        return model(batch.inputs).sum()


@pytest.mark.thorough
def test_vit_huge_at_batch_64_makes_the_known_products_and_its_head_stays_bf16():
    products, unseen = linear_gemms(ViTHuge(data="device"), 64)
    found = {(layer, one.role): one.shape for one in products for layer in one.layers}
    fc1 = "blocks.*.mlp.fc1"
    assert found[fc1, "forward"] == Shape(m=12608, n=5120, k=1280)
    assert found[fc1, "input gradient"] == Shape(m=12608, n=1280, k=5120)
    assert found[fc1, "weight gradient"] == Shape(m=5120, n=1280, k=12608)
    assert found["blocks.*.attn.qkv", "forward"] == Shape(m=12608, n=3840, k=1280)
    assert found["head", "forward"] == Shape(m=64, n=1000, k=1280)
    assert (len(products), unseen) == (5 * 3, ())
    assert {one.calls_per_step for one in products if "head" not in one.layers} == {32}
    assert {one.layers for one in products if one.stays_bf16 is not None} == {("head",)}


@pytest.mark.parametrize(
    ("second_is_trained", "wanted"),
    [
        (True, [(("0", "1"), "forward", 2), (("0", "1"), "weight gradient", 2), (("1",), "input gradient", 1)]),
        (False, [(("0", "1"), "forward", 2), (("0",), "weight gradient", 1), (("1",), "input gradient", 1)]),
    ],
)
def test_layers_of_equal_shape_and_role_are_one_product_and_a_frozen_weight_has_no_gradient(second_is_trained, wanted):
    def make():
        return nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32).requires_grad_(second_is_trained))

    products, _ = linear_gemms(Made(make), 16)
    assert [(one.layers, one.role, one.calls_per_step) for one in products] == wanted


def test_layers_that_are_not_called_are_named_and_odd_features_stay_bf16():
    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    _, unseen = linear_gemms(Made(lambda: attention.to("meta"), tail=(4, 32)), 16)
    assert unseen == ("self_attn.out_proj",)
    (product, _), _ = linear_gemms(Made(lambda: nn.Linear(32, 10)), 16)
    assert product.label == "(the model) forward"
    assert product.stays_bf16 == "32 or 10 features are not divisible by 16"


def test_a_workload_without_linear_layers_or_that_looks_at_its_numbers_is_refused():
    with pytest.raises(UsageError, match=r"calls no nn\.Linear"):
        linear_gemms(Made(lambda: nn.Identity()), 16)

    class Peeks(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * inputs.sum().item()

    with pytest.raises(UsageError, match="does not run on the meta device"):
        linear_gemms(Made(Peeks), 16)


def test_numbers_between_dots_are_folded():
    names = {
        **{"blocks.17.mlp.fc1": "blocks.*.mlp.fc1", "0.weight": "*.weight"},
        **{"layers.3.experts.12": "layers.*.experts.*", "": "(the model)"},
        **{name: name for name in ("fc1", "0", "0.2", "conv2d")},
    }
    assert {name: fold(name) for name in names} == names
