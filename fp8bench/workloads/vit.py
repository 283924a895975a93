"""timm's VisionTransformer on random images: ViT-Huge as in the articles, and a tiny one for CPUs.

ViT-Huge/16 at 224 px has 632,199,400 parameters and costs 763.5 GFLOP an image, forward and backward (the backward of
the first layer's input is not computed and not counted).
"""

from typing import Any, ClassVar

from torch import nn

from fp8bench.workloads.base import ImageClassifier
from fp8bench.workloads.resizable import Resizable


class ViTHuge(Resizable, ImageClassifier):
    """ViT-Huge/16 with a class token, 224 px, 1000 classes."""

    name = "vit-huge"
    depth_size: ClassVar[str | None] = "depth"
    multiples = (("embed_dim", 1, "num_heads"), ("img_size", 1, "patch_size"))
    architecture: ClassVar[dict[str, Any]] = dict(
        img_size=224, patch_size=16, embed_dim=1280, depth=32, num_heads=16, num_classes=1000
    )

    def model(self) -> nn.Module:
        from timm.models.vision_transformer import VisionTransformer

        model: nn.Module = VisionTransformer(**self.architecture)
        return model

    @property
    def images(self) -> tuple[int, int]:
        return self.architecture["img_size"], self.architecture["num_classes"]

    def sizes(self) -> dict[str, int | str]:
        return dict(self.architecture)


class ViTHuge256(ViTHuge):
    """The second article's model: no class token, average pooling, 256 px (256 tokens), 1024 classes."""

    name = "vit-huge-256"
    architecture: ClassVar[dict[str, Any]] = ViTHuge.architecture | dict(
        class_token=False, global_pool="avg", img_size=256, num_classes=1024
    )


class ViTMicro(ViTHuge):
    """A model that is small enough for two CPU cores, with widths in multiples of 16 so that float8 can be emulated."""

    name = "vit-micro"
    architecture: ClassVar[dict[str, Any]] = dict(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=16
    )
