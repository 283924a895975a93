"""Any image model of timm, on random images: `timm:convnext_base`, `timm:eva02_large_patch14_224`, and so on.

A model is built by timm's own function with pretrained=False. Three things are changed for every mode, because none
could be proved otherwise:

  dropout and stochastic depth are off     two passes would differ by chance
  tiny LayerScales and zero norms are 1    a fresh block would add nothing to its input, and hide a faulty conversion
  qkv of EVA, BEiT, Swin V2 has its bias   they hand weight and bias to a function, which no mode could convert; the
                                           bias of keys, which softmax cancels, is then trained too

A model that mixes the samples of a batch (BatchNorm in training) is refused, which the gate takes for a fault, and one
without a row of logits for each image: both are seen on the meta device, where tensors have no memory.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import gcd, lcm
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fp8bench.schema.errors import ModeUnavailable, first_line
from fp8bench.schema.gemm import ALIGNMENT
from fp8bench.workloads.base import ImageClassifier, Work, flops_of

USUAL_CLASSES = 1000  # the number of classes of a model that timm registers without a head

CHANNELS = 3
HIDING = 0.1
"""A LayerScale of at most this value hides its block from the gate. Those in timm are 1e-6 to 0.1, or 1."""

_LAYER_SCALE = re.compile(r"(^|\.)(gamma\w*|ls\d*|layer_scale\w*(\.scale)?)$")


class TimmModel(ImageClassifier):
    """One model of timm; `of` makes its class. image_size, in pixels of a side, and classes: None for the model's."""

    name = "timm"
    member: ClassVar[str] = ""
    config_fields: ClassVar[tuple[str, ...]] = ("image_size", "classes")

    def __init__(self, image_size: int | None = None, classes: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._asked = image_size, classes

    @classmethod
    def of(cls, member: str) -> "type[TimmModel]":
        return type(cls.__name__, (cls,), {"name": f"timm:{member}", "member": member})

    @cached_property
    def made(self) -> "Made":
        """What is to be built. Raises ModeUnavailable for images that are not square or do not have three channels."""
        size, classes = self._asked
        (channels, height, width), own_classes = _registered(self.member)
        if channels != CHANNELS or (size is None and height != width):
            what = f"{self.name} takes images of {channels} x {height} x {width}, and random ones are square, in colour"
            raise ModeUnavailable(what, "Name another model, or give a side with --image-size")
        resized = size is not None and (size, size) != (height, width)
        return Made(self.member, size or height, classes or own_classes or USUAL_CLASSES, resized)

    def check(self, batch_size: int, fp8: bool) -> None:
        """Raise ModeUnavailable if the model cannot be proved, or does not take these images, or fp8 the batch."""
        norms, output, of_layers = _survey(self.made, batch_size)
        if norms:
            raise ModeUnavailable(
                f"{self.name} has {len(norms)} BatchNorm layers (the first is {norms[0]}), by which samples of a batch "
                "see each other: no mode of it can be proved, since that is how a faulty conversion shows",
                "Use a model that has LayerNorm instead, such as timm:convnext_base or a ViT",
            )
        expected = f"{batch_size} x {self.made.classes}"
        if output != expected:
            raise ModeUnavailable(
                f"{self.name} gives an output of {output} for {batch_size} images, and not logits of {expected}",
                "Use a model with a classifier; `fp8bench list workloads timm:NAME` looks at one",
            )
        wrong = [name for name, rows in of_layers.items() if fp8 and rows % ALIGNMENT]
        if not wrong:
            return
        # A layer that no batch size can fix is named first.
        twice = _survey(self.made, 2 * batch_size)[2]
        grows = {name: rows for name, rows in of_layers.items() if twice[name] == 2 * rows}
        name = next((name for name in wrong if name not in grows), wrong[0])
        step = lcm(*(ALIGNMENT // gcd(ALIGNMENT, rows // batch_size) for rows in grows.values()), 1)
        what = f"fp8 GEMMs need a multiple of {ALIGNMENT} rows, and {name} of {self.name} has {of_layers[name]:,}"
        raise ModeUnavailable(
            f"{what} at batch {batch_size} and {self.made.image_px} px",
            f"Use a --batch-size that is a multiple of {step}"
            if name in grows
            else "No batch size changes that: use a mode without fp8, or another model",
        )

    def model(self) -> nn.Module:
        return _build(self.made)

    @property
    def images(self) -> tuple[int, int]:
        return self.made.image_px, self.made.classes

    def work(self) -> Work:
        return _work(self.made)

    def parameters(self) -> int:
        return self.work()[0]

    def sizes(self) -> dict[str, int | str]:
        """Return the sizes and the number of parameters, because versions of timm may differ in a model."""
        px, classes = self.images
        return {"model": self.member, "img_size": px, "num_classes": classes, "parameters": self.parameters()}


@dataclass(frozen=True)
class Made:
    """What is to be built. resized: to images of another size than the model's own."""

    model: str
    image_px: int
    classes: int
    resized: bool


def _registered(name: str) -> tuple[tuple[int, int, int], int]:
    import timm

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if config is None:
        return (CHANNELS, 224, 224), USUAL_CLASSES
    return config.input_size, config.num_classes


def _build(made: Made) -> nn.Module:
    import timm

    known: dict[str, Any] = {"pretrained": False, "num_classes": made.classes}
    resized = {**known, "img_size": made.image_px} if made.resized else known
    try:
        model: nn.Module = timm.create_model(made.model, **resized)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        # A convolutional model takes images of any size, and has no such argument.
        model = timm.create_model(made.model, **known)
    _without_chance(model)
    _give_qkv_its_bias(model)
    if next(model.parameters()).device.type != "meta":
        _unhide(model)
    return model


def _without_chance(model: nn.Module) -> None:
    from timm.layers.drop import DropBlock2d, DropPath
    from timm.layers.patch_dropout import PatchDropout

    for name, module in list(model.named_modules()):
        if isinstance(module, DropPath | DropBlock2d | PatchDropout):
            model.set_submodule(name, nn.Identity())
        elif isinstance(module, _DropoutNd):
            module.p = 0.0


def _give_qkv_its_bias(model: nn.Module) -> None:
    for module in model.modules():
        qkv, query, value = (getattr(module, name, None) for name in ("qkv", "q_bias", "v_bias"))
        if isinstance(qkv, nn.Linear) and qkv.bias is None and query is not None and value is not None:
            key = torch.zeros_like(query)
            qkv.bias = nn.Parameter(torch.cat((query, key, value)).detach())
            # Without q_bias, timm calls the layer as a module.
            module.q_bias = module.k_bias = module.v_bias = None


@torch.no_grad()
def _unhide(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if _LAYER_SCALE.search(name) and parameter.abs().max() <= HIDING:
            parameter.fill_(1.0)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.weight is not None and not module.weight.any():
            module.weight.fill_(1.0)
    for head in _heads(model):
        if isinstance(head, nn.Linear) and not head.weight.any():
            nn.init.trunc_normal_(head.weight, std=0.02)


def _heads(model: Any) -> tuple[nn.Module, ...]:
    # There are several in a distilled model.
    found = model.get_classifier() if hasattr(model, "get_classifier") else ()
    return tuple(found) if isinstance(found, tuple | list) else (found,)


@cache
def _survey(made: Made, batch_size: int) -> tuple[list[str], str, dict[str, int]]:
    # BatchNorm layers, the form of the output, and the rows of each linear layer that fp8 supports.
    rows: dict[str, int] = {}

    def note(name: str, layer: nn.Linear, arguments: tuple[Tensor, ...]) -> None:
        rows[name] = arguments[0].numel() // layer.in_features

    model, forward = _meta(made, batch_size)
    heads = _heads(model)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer not in heads:
            if layer.in_features % ALIGNMENT == 0 and layer.out_features % ALIGNMENT == 0:
                layer.register_forward_pre_hook(partial(note, name))
    output = forward()
    form = " x ".join(map(str, output.shape)) if isinstance(output, Tensor) else type(output).__name__
    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    return norms, form, rows


@cache
def _work(made: Made) -> Work:
    # Of two images, since a model may treat one in another way.
    model, forward = _meta(made, 2)
    return sum(parameter.numel() for parameter in model.parameters()), flops_of(forward) // 2


def _meta(made: Made, batch_size: int) -> tuple[nn.Module, Callable[[], object]]:
    """Return the model and a forward pass of it, on the meta device. Both raise ModeUnavailable."""
    with _refusing(made), torch.device("meta"):
        model, images = _build(made).train(), torch.empty(batch_size, CHANNELS, made.image_px, made.image_px)
    for layer in model.modules() if made.resized else ():
        # Convolutions that cut images into patches neither overlap nor are padded.
        if isinstance(layer, nn.Conv2d) and layer.in_channels == CHANNELS and layer.padding in ((0, 0), "valid"):
            if layer.kernel_size == layer.stride and max(layer.stride) > 1:
                layer.register_forward_pre_hook(partial(_require_whole_patches, made))
    return model, _refusing(made)(partial(model, images))


@contextmanager
def _refusing(made: Made) -> Iterator[None]:
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        what, remedy = f"run on the meta device, where its work is counted: {first_line(error)}", "Name another model"
        if made.resized:
            what = f"take images of {made.image_px} px: {first_line(error)}"
            own = _registered(made.model)[0][1]
            remedy = f"Omit --image-size, which is then {own}, or give a size that its patches and windows divide"
        raise ModeUnavailable(f"timm:{made.model} does not {what}", remedy) from error


def _require_whole_patches(made: Made, layer: nn.Conv2d, inputs: tuple[Tensor, ...]) -> None:
    # A convolution would ignore pixels that no longer fill a patch. Where the model pads its images to whole patches,
    # these are padded. timm itself refuses an image that is smaller than a patch.
    sides = tuple(zip(inputs[0].shape[2:], layer.stride, strict=True))
    if any(side < step for side, step in sides) or all(side % step == 0 for side, step in sides):
        return
    patch = lcm(*layer.stride)
    below = made.image_px // patch * patch
    what = f"timm:{made.model} does not take images of {made.image_px} px: it cuts them into patches of {patch} px, and"
    sizes = f"{below} or {below + patch}" if below else f"{patch}"
    raise ModeUnavailable(f"{what} would ignore what is left over", f"Use --image-size {sizes}")
