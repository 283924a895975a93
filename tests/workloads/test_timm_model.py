"""Models of timm as workloads: what is built, what is changed of it, how its work is counted, what is refused."""

import re

import pytest
import torch
from torch import nn

from fp8bench import registry
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.workloads.vit import ViTHuge, ViTHuge256, ViTMicro

pytestmark = pytest.mark.slow

CPU, META = torch.device("cpu"), torch.device("meta")


def workload(name, **sizes):
    return registry.load(registry.find_workload(f"timm:{name}"))(data="device", **sizes)


def refusal(name, batch_size=16, fp8=True, **sizes):
    with pytest.raises(ModeUnavailable) as refused:
        workload(name, **sizes).check(batch_size, fp8)
    return refused.value


def test_image_size_and_classes_are_the_models_own_or_as_asked():
    name = "vit_tiny_patch16_224"
    own, other = workload(name), workload(name, image_size=48, classes=10)
    assert own.sizes() == {"model": name, "img_size": 224, "num_classes": 1000, "parameters": 5_717_416}
    assert (other.sizes()["img_size"], other.sizes()["num_classes"]) == (48, 10)
    [image, target] = next(other.batches(2, 0, CPU))
    assert (image.shape, other.build(CPU)(image).shape) == ((2, 3, 48, 48), (2, 10))
    assert target.max() < 10
    # A shared LayerNorm of zeros is not a bias: biases start at zero and stay so.
    assert not any(part.bias.any() for part in other.build(CPU).modules() if isinstance(part, nn.LayerNorm))
    # A model of convolutions takes another size without being told.
    workload("convnext_tiny", image_size=64).check(16, True)


def test_a_vit_counts_as_the_vit_workloads_do_and_depthwise_convolutions_by_their_groups():
    """ConvNeXt-T is published with 4.5 G multiply-adds; three passes of twice as many operations."""
    sizes = dict(img_size=224, patch_size=16, embed_dim=192, depth=12, num_heads=3, num_classes=1000)
    assert workload("vit_tiny_patch16_224").flops_per_step(4) == ViTMicro().resized(**sizes).flops_per_step(4)
    assert workload("convnext_tiny").flops_per_step(1) / 1e9 == pytest.approx(4.5 * 6, rel=0.015)


class TestWhatIsChanged:
    def test_nothing_is_drawn_anew_in_a_pass(self):
        """Swin has stochastic depth by default, Swin V2 CR dropout too."""
        made = workload("swin_tiny_patch4_window7_224", image_size=56)
        model = made.build(CPU)
        batch = next(made.batches(2, 0, CPU))
        assert torch.equal(model(batch.inputs), model(batch.inputs))

    @pytest.mark.parametrize("name", ["convnext_tiny", "swinv2_tiny_window8_256"])
    def test_every_block_moves_what_passes_it(self, name):
        """Tiny LayerScales, and norms of zero, would let any conversion of a block pass the gate."""
        made = workload(name, image_size=64)
        model = made.build(CPU)
        inputs = next(made.batches(1, 0, CPU)).inputs
        passed = []
        for block in model.modules():
            if type(block).__name__ in ("ConvNeXtBlock", "SwinTransformerV2Block"):
                block.register_forward_hook(lambda _block, given, output: passed.append((*given, output)))
        with torch.no_grad():
            model(inputs)
        moved = [float((after - before).norm() / before.norm()) for before, after in passed]
        assert len(moved) >= 12
        assert min(moved) > 0.01

    def test_qkv_of_beit_is_called_as_a_layer_and_computes_the_same(self):
        import timm

        made = workload("eva02_tiny_patch14_224", image_size=28)
        plain = timm.create_model("eva02_tiny_patch14_224", img_size=28).eval()
        model = made.build(CPU).eval()
        with torch.no_grad():
            for block, other in zip(plain.blocks, model.blocks, strict=True):
                for bias in (block.attn.q_bias, block.attn.v_bias):
                    bias.normal_()
                other.attn.qkv.weight.copy_(block.attn.qkv.weight)
                other.attn.qkv.bias.copy_(torch.cat((block.attn.q_bias, block.attn.k_bias, block.attn.v_bias)))
                other.attn.proj.load_state_dict(block.attn.proj.state_dict())
            x = torch.randn(2, 5, 192)
            assert torch.allclose(plain.blocks[0].attn(x), model.blocks[0].attn(x), atol=1e-6)
        called = []
        model.blocks[0].attn.qkv.register_forward_hook(lambda *_: called.append(True))
        model.blocks[0].attn(x)
        assert called


CUT = "does not take images of {} px: it cuts them into patches of {} px"


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "options", "what", "remedy"),
        [
            ("resnet18", {"image_size": 32}, "has 20 BatchNorm layers (the first is bn1), by which", "LayerNorm"),
            ("deepseek_vit_412m_enc", {}, "16 x 169 x 5120 for 16 images, and not logits of 16 x 1000", "a classifier"),
            ("swin_tiny_patch4_window7_224", {"image_size": 1}, "does not take images of 1 px", "which is then 224"),
            ("vit_base_patch16_sapiens2", {}, "takes images of 3 x 1024 x 768", "--image-size"),
            ("vit_tiny_patch16_224", {"image_size": 33}, CUT.format(33, 16), "^Use --image-size 32 or 48$"),
            ("convnext_tiny", {"image_size": 34}, CUT.format(34, 4), "^Use --image-size 32 or 36$"),
        ],
    )
    def test_a_model_that_cannot_be_proved_or_does_not_take_the_images(self, name, options, what, remedy):
        refused = refusal(name, fp8=False, **options)
        assert what in refused.what
        assert re.search(remedy, refused.remedy)
        if name.startswith("vit_tiny"):
            with pytest.raises(ModeUnavailable, match="patches of 16 px"):
                workload(name, **options).flops_per_step(2)

    def test_rows_that_do_not_fill_fp8s_gemms_are_refused_in_fp8_alone(self):
        workload("vit_so400m_patch14_siglip_384").check(2, False)
        workload("convnext_tiny", image_size=32).check(3, False)
        refused = refusal("convnext_tiny", 3, image_size=32)
        assert "stages.2.blocks.0.mlp.fc1 of timm:convnext_tiny has 12 at batch 3 and 32 px" in refused.what
        assert refused.remedy == "Use a --batch-size that is a multiple of 16"

    @pytest.mark.thorough
    def test_rows_that_no_batch_changes(self):
        refused = refusal("swinv2_base_window12_192")
        assert "cpb_mlp.2" in refused.what
        assert refused.remedy.startswith("No batch size changes that")


def test_vit_huge_has_632_million_parameters_and_the_second_articles_model_256_tokens():
    model = ViTHuge().build(META)
    assert sum(parameter.numel() for parameter in model.parameters()) == 632_199_400
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}, "made on the device itself"
    assert ViTHuge().flops_per_step(64) == pytest.approx(64 * 763.5e9, rel=1e-4)
    model = ViTHuge256().build(META)
    assert model.cls_token is None
    assert model.pos_embed.shape[1] == 256
    assert model.head.out_features == 1024
