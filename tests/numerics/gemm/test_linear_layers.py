"""Which products a workload's linear layers make, and how they are named."""

import pytest
import torch
from torch import Tensor, nn

from fp8bench.numerics.gemm.linear_layers import fold, linear_gemms
from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import Shape
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTHuge

pytestmark = pytest.mark.slow


def shape(m, n, k):
    return Shape(m=m, n=n, k=k)


class Made:
    """A workload of any model. Its inputs are [batch, *tail]."""

    name = "made"
    unit = "samples"

    def __init__(self, make, tail=(32,)):
        self._make = make
        self._tail = tail

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
    assert found[fc1, "forward"] == shape(12608, 5120, 1280)
    assert found[fc1, "input gradient"] == shape(12608, 1280, 5120)
    assert found[fc1, "weight gradient"] == shape(5120, 1280, 12608)
    assert found["blocks.*.attn.qkv", "forward"] == shape(12608, 3840, 1280)
    assert found["head", "forward"] == shape(64, 1000, 1280)
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
