"""Which products a workload's linear layers make, and how they are named."""

import math

import pytest
import torch
from torch import Tensor, nn

from fp8bench.numerics.linear_shapes import LinearProducts, fold, linear_products, misaligned, require_aligned
from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import Product, Shape
from fp8bench.workloads.protocol import Batch
from fp8bench.workloads.vit import ViTHuge, ViTMicro


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


@pytest.fixture(scope="module")
def huge():
    return linear_products(ViTHuge(data="device"), 64)


def find(found, layer, role):
    return next(one for one in found.products if layer in one.layers and one.role == role)


def test_vit_huge_at_batch_64_makes_the_known_products(huge):
    assert find(huge, "blocks.*.mlp.fc1", "forward").shape == shape(12608, 5120, 1280)
    assert find(huge, "blocks.*.mlp.fc1", "input gradient").shape == shape(12608, 1280, 5120)
    assert find(huge, "blocks.*.mlp.fc1", "weight gradient").shape == shape(5120, 1280, 12608)
    assert find(huge, "blocks.*.attn.qkv", "forward").shape == shape(12608, 3840, 1280)
    assert len(huge.products) == 5 * 3
    assert {one.calls_per_step for one in huge.products if "head" not in one.layers} == {32}
    assert (huge.rows_per_sample, huge.unseen) == ((197,), ())


def test_the_head_stays_bf16_as_in_the_modes(huge):
    assert find(huge, "head", "forward").shape == shape(64, 1000, 1280)
    assert {one.layers for one in huge.products if one.stays_bf16 is not None} == {("head",)}


def test_their_work_is_that_of_the_step_but_for_attention_and_the_patches(huge):
    linear = sum(one.shape.flops * one.calls_per_step for one in huge.products)
    assert 0.95 < linear / ViTHuge().flops_per_step(64) < 1


def test_layers_of_equal_shape_and_role_are_one_product():
    found = linear_products(Made(lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))), 16)
    assert [(one.layers, one.role, one.calls_per_step) for one in found.products] == [
        (("*",), "forward", 2),
        (("*",), "weight gradient", 2),
        (("*",), "input gradient", 1),
    ]


def test_layers_of_other_names_share_a_product():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(32, 48), nn.Linear(32, 48)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.query(inputs) + self.key(inputs)

    found = linear_products(Made(Two), 16)
    assert found.products[0].layers == ("query", "key")
    assert found.products[0].label == "query, key forward"
    assert found.products[0].calls_per_step == 2


def test_a_frozen_weight_has_no_gradient_product():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
            self.second.requires_grad_(False)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.second(self.first(inputs))

    found = linear_products(Made(Frozen), 16)
    assert [(one.layers, one.role) for one in found.products] == [
        (("first", "second"), "forward"),
        (("first",), "weight gradient"),
        (("second",), "input gradient"),
    ]


def test_leading_dimensions_are_rows_together():
    found = linear_products(Made(lambda: nn.Linear(32, 48), tail=(3, 5, 32)), 16)
    assert found.products[0].shape == shape(16 * 3 * 5, 48, 32)
    assert found.rows_per_sample == (15,)


def test_layers_that_are_not_called_are_named():
    attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    found = linear_products(Made(lambda: attention.to("meta"), tail=(4, 32)), 16)
    assert found.unseen == ("self_attn.out_proj",)


def test_odd_features_stay_bf16():
    (product, _) = linear_products(Made(lambda: nn.Linear(32, 10)), 16).products
    assert product.stays_bf16 == "32 or 10 features are not divisible by 16"


def test_a_workload_without_linear_layers_is_refused():
    with pytest.raises(UsageError, match=r"calls no nn\.Linear"):
        linear_products(Made(lambda: nn.Identity()), 16)


def test_a_model_that_looks_at_its_numbers_is_refused_with_a_remedy():
    class Peeks(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * inputs.sum().item()

    with pytest.raises(UsageError, match="does not run on the meta device"):
        linear_products(Made(Peeks), 16)


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("blocks.17.mlp.fc1", "blocks.*.mlp.fc1"),
        ("0.weight", "*.weight"),
        ("fc1", "fc1"),
        ("layers.3.experts.12", "layers.*.experts.*"),
        ("conv2d", "conv2d"),
    ],
)
def test_numbers_between_dots_are_folded(name, folded):
    assert fold(name) == folded


@pytest.mark.parametrize(("batch_size", "fitting"), [(8, 16), (17, 32), (63, 64)])
def test_a_batch_that_fp8_cannot_take_is_refused_with_one_that_it_can(batch_size, fitting):
    found = linear_products(ViTMicro(data="device"), batch_size)
    with pytest.raises(UsageError) as refused:
        require_aligned(found, batch_size)
    assert f"its M = {17 * batch_size} is not divisible by 16" in str(refused.value)
    assert f"Say --batch-size {fitting}," in str(refused.value)
    require_aligned(linear_products(ViTMicro(data="device"), fitting), fitting)


def test_what_stays_bf16_may_have_any_size():
    goes_to_fp8 = Product(shape=shape(7, 10, 3), layers=("head",), calls_per_step=1)
    stays = goes_to_fp8.model_copy(update={"stays_bf16": "the head stays bf16"})
    with pytest.raises(UsageError, match="is not divisible by 16"):
        require_aligned(LinearProducts((goes_to_fp8,), (1,), ()), 7)
    assert require_aligned(LinearProducts((stays,), (1,), ()), 7) is None


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ((16, 32, 48), None),
        ((17, 32, 48), ("M", 17, 32)),
        ((16, 33, 48), ("N", 33, 48)),
        ((16, 32, 40), ("K", 40, 48)),
    ],
)
def test_the_dimension_that_does_not_fit_and_the_next_that_would(sizes, wrong):
    assert misaligned(shape(*sizes)) == wrong


def test_flops():
    assert shape(12608, 5120, 1280).flops == 2 * math.prod((12608, 5120, 1280))
