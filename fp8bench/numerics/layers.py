"""The layers that are examined, a linear layer and a timm ViT block; each in a mode's precision; and their inputs.

  linear  width -> 4 * width without bias, as the first of a block's MLP.
  block   timm's Block with biases of zero, as fresh from initialisation, and the usual heads.

Weights are normal of standard deviation in^-1/2, drawn in float32 once for all modes. A mode converts timm's blocks by
itself. torchao's also converts the linear layer; for Transformer Engine's modes it becomes a te.Linear with the weight
copied. Each layer takes an input, and a gradient at its output:

  normal        what initialisation and layer norms make: nearly all values within a factor of 8 of each other.
  heavy-tailed  Student's t with 3 degrees of freedom: a few values far out set the scale for all the others.
  outlier       normal, with a few channels 100 times as large, as large transformers grow them (Dettmers et al. 2022,
                LLM.int8(), arXiv:2208.07339).

The same with `-exact` after its name: each operand, the weight too, is moved to values that fp8 has (see
scaling.representable), so that casts add no error. One set serves every recipe: the output gradient keeps to values
that e4m3 and e5m2 both have, and its largest, 448 times a power of two, is 57344 times another.

Everything is drawn on the CPU from a seed of its own, made of the run's seed and of what is drawn: the same numbers for
every machine and every mode.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import Mode
from fp8bench.modes.te_block import TEBlock, copy_linear
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16, import_te
from fp8bench.numerics.scaling import BOTH, E4M3, generator, representable
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.numerics import EXACT, Distribution, InputName, LayerName

MLP_RATIO = 4
HEADS = 16
HEAD_MULTIPLE = 16
IMAGES = 8
EPSILON = 1e-6
"""timm's ViT's, of its layer norms."""

DEGREES_OF_FREEDOM = 3
OUTLIER_FACTOR = 100.0
CHANNELS_AN_OUTLIER = 128
LEAST_OUTLIERS = 2
"""One channel in so many is an outlier, and so many at least."""

GRADIENT_SIZE = 1e-4
"""Standard deviation of a normal output gradient: as small as in training, where e5m2 without a scale has few values
left (its smallest is 1.5e-5).
"""


@dataclass(frozen=True)
class Shapes:
    """Of a layer's input and output."""

    input: tuple[int, ...]
    output: tuple[int, ...]


def shapes(layer: LayerName, width: int, tokens: int) -> Shapes:
    """linear: [tokens, width] to [tokens, 4 * width]. block: [images, tokens / images, width] in and out."""
    if layer == "linear":
        return Shapes((tokens, width), (tokens, MLP_RATIO * width))
    images = IMAGES if tokens % IMAGES == 0 else 1
    return Shapes((images, tokens // images, width), (images, tokens // images, width))


def plain_layer(layer: LayerName, width: int, seed: int, exact: bool) -> nn.Module:
    """The layer in float32 on the CPU, inside a module, since modes swap a module's parts. exact: the linear layer's
    weight is moved to e4m3's grid.
    """
    if layer == "linear":
        linear = nn.Linear(width, MLP_RATIO * width, bias=False)
        weight = draw_weight(linear.weight.shape, seed, "linear")
        with torch.no_grad():
            linear.weight.copy_(representable(weight, E4M3) if exact else weight)
        return nn.Sequential(OrderedDict(linear=linear))
    block = _block(width)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(draw_weight(parameter.shape, seed, name))
            elif name.endswith("bias"):
                parameter.zero_()
    return nn.Sequential(OrderedDict(block=block))


def heads(width: int) -> int:
    """16 where each is then a multiple of 16 wide, as in ViT-Huge; else half, or half of that."""
    count = HEADS
    while width % (count * HEAD_MULTIPLE):
        count //= 2
    return count


def convert(mode: Mode, plain: nn.Module) -> nn.Module:
    """`plain` in the mode's precision; it may be changed in place. Raises what `mode.convert` raises."""
    linear = plain.get_submodule("linear") if hasattr(plain, "linear") else None
    if isinstance(mode, TEBF16) and isinstance(linear, nn.Linear):
        return nn.Sequential(OrderedDict(linear=_te_linear(linear)))
    return mode.convert(plain)


def autocast(mode: Mode, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 autocast, as in training. Not for torchao on a CPU: emulated GEMMs are in float32, and so only the casts add
    to the error.
    """
    if isinstance(mode, TorchAOFloat8) and device.type == "cpu":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def weights(module: nn.Module) -> Sequence[nn.Parameter]:
    """The weights of the linear layers in the order of computation, each [out, in], however converted.

    Raises ModeUnavailable for a block that is none of those known here.
    """
    inner: Any = next(module.children())
    if isinstance(inner, TEBlock):
        attention, mlp = inner.layer.self_attention, inner.layer.layernorm_mlp
        return (attention.layernorm_qkv.weight, attention.proj.weight, mlp.fc1_weight, mlp.fc2_weight)
    if hasattr(module, "linear"):
        return (inner.weight,)
    try:
        return (inner.attn.qkv.weight, inner.attn.proj.weight, inner.mlp.fc1.weight, inner.mlp.fc2.weight)
    except AttributeError as error:
        raise ModeUnavailable(
            f"the mode converts timm's Block to a {type(inner).__name__}, whose weights are not known here",
            "Examine the linear layer alone with --layer linear",
        ) from error


def weight_gradient(module: nn.Module) -> Tensor:
    """The gradients of `weights`, one after the other, [elements]."""
    gradients = [weight.grad for weight in weights(module)]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def _te_linear(linear: nn.Linear) -> nn.Module:
    te = import_te()
    layer: nn.Module = te.Linear(
        linear.in_features,
        linear.out_features,
        bias=False,
        params_dtype=torch.float32,
        device=linear.weight.device,
    )
    copy_linear(layer, linear.weight, None)
    return layer


def _block(width: int) -> nn.Module:
    from timm.models.vision_transformer import Block

    norm: Any = partial(nn.LayerNorm, eps=EPSILON)
    block: nn.Module = Block(width, heads(width), mlp_ratio=MLP_RATIO, qkv_bias=True, norm_layer=norm)
    return block


@dataclass(frozen=True)
class Operands:
    """input: [..., in]; output_gradient: [..., out]; float32."""

    input: Tensor
    output_gradient: Tensor

    def to(self, device: torch.device) -> "Operands":
        """The same on a device."""
        return Operands(self.input.to(device), self.output_gradient.to(device))


def is_exact(name: InputName) -> bool:
    """Whether its operands are moved to fp8's grid."""
    return name.endswith(EXACT)


def distribution(name: InputName) -> Distribution:
    """The distribution that is drawn from."""
    return cast(Distribution, name.removesuffix(EXACT))


def draw(name: InputName, input_shape: Sequence[int], output_shape: Sequence[int], seed: int, number: int) -> Operands:
    """The `number`th draw, on the CPU. Different draws are independent."""
    kind = distribution(name)
    given = draw_values(kind, input_shape, generator(seed, kind, "input", number))
    gradient = draw_values(kind, output_shape, generator(seed, kind, "gradient", number)) * GRADIENT_SIZE
    if is_exact(name):
        return Operands(representable(given, E4M3), representable(gradient, BOTH))
    return Operands(given, gradient)


def draw_weight(shape: Sequence[int], seed: int, what: str) -> Tensor:
    """[out, in] normal, of standard deviation in^-1/2, so that outputs are about as large as inputs."""
    return torch.randn(tuple(shape), generator=generator(seed, "weight", what)) / math.sqrt(shape[-1])


def draw_values(kind: Distribution, shape: Sequence[int], by: torch.Generator) -> Tensor:
    """float32 of the distribution, on the CPU. Of outliers the last dimension is that of the channels."""
    values = torch.randn(tuple(shape), generator=by)
    if kind == "heavy-tailed":
        squares = [torch.randn(tuple(shape), generator=by).square() for _ in range(DEGREES_OF_FREEDOM)]
        # By definition: a normal over the root of the mean of the squares of so many other normals.
        values /= torch.stack(squares).mean(0).sqrt()
    if kind == "outlier":
        channels = shape[-1]
        count = max(LEAST_OUTLIERS, channels // CHANNELS_AN_OUTLIER)
        values[..., torch.randperm(channels, generator=by)[:count]] *= OUTLIER_FACTOR
    return values
