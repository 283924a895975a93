"""The articles' models, by their published sizes."""

import pytest
import torch

from fp8bench.workloads.fake_data import LENGTH, EndlessSampler, fake_images
from fp8bench.workloads.vit import ViTHuge, ViTHuge256, ViTMicro

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_vit_huge_has_632_million_parameters_and_costs_763_gflop_an_image():
    model = ViTHuge().build(torch.device("meta"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 632_199_400
    assert ViTHuge().flops_per_step(64) == pytest.approx(64 * 763.5e9, rel=1e-4)


def test_the_second_articles_model_has_no_class_token_and_256_tokens():
    model = ViTHuge256().build(torch.device("meta"))
    assert model.cls_token is None
    assert model.pos_embed.shape[1] == 256
    assert model.head.out_features == 1024


def test_the_fake_data_is_a_million_normal_images_with_labels_by_index():
    data = fake_images(32, 10, seed=0)
    image, label = data[123_456]
    assert len(data) == LENGTH == 1_000_000
    assert (image.shape, image.dtype, label) == ((3, 32, 32), torch.float32, 6)
    assert abs(float(image.mean())) < 0.1
    assert float(image.std()) == pytest.approx(1, abs=0.1)
    with pytest.raises(IndexError):
        data[LENGTH]


def test_an_image_depends_on_its_index_and_the_seed_alone():
    first, again, other = fake_images(8, 10, 0)[5][0], fake_images(8, 10, 0)[5][0], fake_images(8, 10, 1)[5][0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_ranks_never_draw_the_same_image_in_the_same_pass():
    drawn = []
    for rank in range(8):
        sampler = iter(EndlessSampler(LENGTH, batch_size=4, rank=rank))
        drawn += [next(sampler) for _ in range(12)]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_batches_whatever_its_processes(workers):
    batches = ViTMicro(data="loader", workers=workers).batches(4, 0, CPU)
    first, second = next(batches), next(batches)
    batches.close()
    assert torch.equal(first.inputs[2], fake_images(32, 16, 0)[2][0])
    assert not torch.equal(first.inputs, second.inputs)


def test_resident_data_is_one_batch_over_and_over():
    batches = ViTMicro(data="device").batches(4, 0, CPU)
    assert next(batches).inputs is next(batches).inputs


def test_drawing_the_weights_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    ViTMicro(seed=5).build(CPU)

    assert torch.equal(torch.rand(3), expected)


def test_another_seed_draws_other_weights():
    first, other = (next(ViTMicro(seed=seed).build(CPU).parameters()) for seed in (0, 1))

    assert not torch.equal(first, other)


def test_its_weights_are_made_on_the_device_itself():
    model = ViTMicro().build(torch.device("meta"))

    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
