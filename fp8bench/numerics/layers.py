"""The layers that are examined, converted by a mode, and their inputs.

Weights are normal with standard deviation in^-1/2. Inputs and output gradients are `normal`, `heavy-tailed` (Student's
t with 3 degrees of freedom) or `outlier` (normal, a few channels 100 times as large: Dettmers et al. 2022, LLM.int8(),
arXiv:2208.07339). With `-exact`, all are moved to values that fp8 has (scaling.representable), so that casts add no
error. Everything is drawn on the CPU from the run's seed: the same for every machine and mode.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import Mode
from fp8bench.modes.te_block import TEBlock, te_layer
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16, import_te
from fp8bench.numerics.definitions import E4M3
from fp8bench.numerics.scaling import BOTH, generator, representable
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.numerics import EXACT, InputName, LayerName

MLP_RATIO = 4
IMAGES = 8

GRADIENT_SIZE = 1e-4
"""Of a normal output gradient: as small as in training, where e5m2 without a scale loses much (it ends at 1.5e-5)."""


class Operands(NamedTuple):
    """The operands of a layer, float32. input: [..., in]. output_gradient: [..., out]."""

    input: Tensor
    output_gradient: Tensor


def shapes(layer: LayerName, width: int, tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of input and output: [tokens, channels]; of the block [images, tokens / images, channels]."""
    if layer == "linear":
        return (tokens, width), (tokens, MLP_RATIO * width)
    return ((IMAGES, tokens // IMAGES, width),) * 2


def plain_layer(layer: LayerName, width: int, seed: int, exact: bool) -> nn.Module:
    """Return the layer in float32 on the CPU, in a module, whose parts modes replace. exact: for an -exact input."""
    if layer == "linear":
        linear = nn.Linear(width, MLP_RATIO * width, bias=False)
        weight = draw_weight(linear.weight.shape, seed, "linear")
        with torch.no_grad():
            linear.weight.copy_(representable(weight, E4M3) if exact else weight)
        return nn.Sequential(OrderedDict(linear=linear))
    from timm.models.vision_transformer import Block

    norm: Any = partial(nn.LayerNorm, eps=1e-6)  # as in timm's ViT
    block: nn.Module = Block(width, heads(width), mlp_ratio=MLP_RATIO, qkv_bias=True, norm_layer=norm)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(draw_weight(parameter.shape, seed, name))
            elif name.endswith("bias"):
                parameter.zero_()
    return nn.Sequential(OrderedDict(block=block))


def heads(width: int) -> int:
    """Return 16 if each head is then a multiple of 16 wide, as in ViT-Huge; otherwise 8, 4, 2 or 1."""
    return next(count for count in (16, 8, 4, 2, 1) if width % (16 * count) == 0)


def convert(mode: Mode, plain: nn.Module) -> nn.Module:
    """Return `plain` in the mode's precision. May change it in place. Raises what `mode.convert` raises."""
    linear = getattr(plain, "linear", None)
    if not isinstance(mode, TEBF16) or not isinstance(linear, nn.Linear):
        return mode.convert(plain)
    return nn.Sequential(OrderedDict(linear=te_layer(import_te(), linear)))


def autocast(mode: Mode, device: torch.device) -> AbstractContextManager[Any]:
    """Return bf16 autocast; none for torchao on a CPU, whose GEMMs are in float32, so that only casts add errors."""
    if isinstance(mode, TorchAOFloat8) and device.type == "cpu":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def weights(module: nn.Module) -> Sequence[nn.Parameter]:
    """Return the linear layers' weights, each [out, in], in order. Raises ModeUnavailable for an unknown block."""
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


def draw(name: InputName, layer_shapes: tuple[Sequence[int], Sequence[int]], seed: int, number: int) -> Operands:
    """Return draw `number`, on the CPU. Different draws are independent."""
    kind = name.removesuffix(EXACT)
    given = draw_values(kind, layer_shapes[0], generator(seed, kind, "input", number))
    gradient = draw_values(kind, layer_shapes[1], generator(seed, kind, "gradient", number))
    drawn = Operands(given, gradient * GRADIENT_SIZE)
    return Operands(*map(representable, drawn, (E4M3, BOTH))) if name.endswith(EXACT) else drawn


def draw_weight(shape: Sequence[int], seed: int, what: str) -> Tensor:
    """Return a normal weight, [out, in], with deviation in^-1/2, so that outputs are about as large as inputs."""
    return torch.randn(tuple(shape), generator=generator(seed, "weight", what)) / math.sqrt(shape[-1])


def draw_values(kind: str, shape: Sequence[int], by: torch.Generator) -> Tensor:
    """Return float32 values of the distribution, on the CPU. For outliers, channels are the last dimension."""
    values = torch.randn(tuple(shape), generator=by)
    if kind == "heavy-tailed":
        # By definition: a normal value over the root mean square of as many others as there are degrees of freedom.
        squares = [torch.randn(tuple(shape), generator=by).square() for _ in range(3)]
        values /= torch.stack(squares).mean(0).sqrt()
    if kind == "outlier":
        # One channel in 128, and at least two.
        values[..., torch.randperm(shape[-1], generator=by)[: max(2, shape[-1] // 128)]] *= 100.0
    return values
