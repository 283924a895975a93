"""The articles' models, by their published sizes."""

import pytest
import torch

from fp8bench.workloads.vit import ViTHuge, ViTHuge256

pytestmark = pytest.mark.slow

META = torch.device("meta")


def test_vit_huge_has_632_million_parameters_and_costs_763_gflop_an_image():
    model = ViTHuge().build(META)
    assert sum(parameter.numel() for parameter in model.parameters()) == 632_199_400
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}, "made on the device itself"
    assert ViTHuge().flops_per_step(64) == pytest.approx(64 * 763.5e9, rel=1e-4)


def test_the_second_articles_model_has_no_class_token_and_256_tokens():
    model = ViTHuge256().build(META)
    assert model.cls_token is None
    assert model.pos_embed.shape[1] == 256
    assert model.head.out_features == 1024
