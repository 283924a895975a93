"""What `fp8bench numerics` examines: each layer under each mode against the plain layer in float64 with the mode's own
float32 weights, input and output gradient, and the jump under delayed scaling.

Weights are normal with standard deviation in^-1/2. Inputs and output gradients are `normal`, `heavy-tailed` (Student's
t with 3 degrees of freedom) or `outlier` (normal, a few channels 100 times as large: Dettmers et al. 2022, LLM.int8(),
arXiv:2208.07339). With `-exact`, all are moved to values that fp8 has (scaling.representable), so that casts add no
error. Everything is drawn on the CPU from the run's seed: the same for every machine and mode.

A block's output includes the residual stream, which no mode casts, so its error is smaller. Delayed scaling first sees
as many other draws as the mode needs (`settle_passes`), for an -exact input the same draw. e4m3 rounds normal values by
0.026, e5m2 by 0.053, so a product of two is off by 0.037, and so is a sum of many products of either sign.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fp8bench import registry
from fp8bench.modes.protocol import Mode, stated
from fp8bench.modes.te_block import TEBlock, te_layer
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.modes.transformer_engine import TEBF16, import_te
from fp8bench.numerics.definitions import E4M3
from fp8bench.numerics.memory import device_for, require
from fp8bench.numerics.scaling import (
    BOTH,
    CASTS,
    DELAYED,
    examine_jump,
    generator,
    representable,
    scale_for,
    scaled_cast,
)
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid, ModeUnavailable, RunFailed, first_line
from fp8bench.schema.gemm import padded
from fp8bench.schema.numerics import (
    EXACT,
    TENSORS,
    AmaxJump,
    InputName,
    LayerError,
    LayerName,
    NumericsConfig,
    TensorName,
)

MLP_RATIO = 4
IMAGES = 8

GRADIENT_SIZE = 1e-4
"""Of a normal output gradient: as small as in training, where e5m2 without a scale loses much (it ends at 1.5e-5)."""

WEIGHT_BYTES, ACTIVATION_BYTES = 52, 400
"""Of a weight 46, plus an eighth for the allocator. Per token and channel: about 30 tensors of a block, and draws."""

WEIGHTS: dict[LayerName, int] = {"linear": MLP_RATIO, "block": 4 + 2 * MLP_RATIO}
"""The weights of a layer, in squares of its width. A block has queries, keys, values and projection, and its MLP."""

ALIGNMENTS = {"te-fp8:mxfp8": 32}
"""The multiples that widths must be divisible by, for modes that need more than 16."""


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


def layers_bytes(layers: Iterable[LayerName], width: int, tokens: int) -> int:
    """Return the most bytes that examining layers needs. They are examined one after the other: the largest counts."""
    weights = max(WEIGHTS[layer] for layer in layers) * width**2
    return WEIGHT_BYTES * weights + ACTIVATION_BYTES * width * tokens


class Examined(NamedTuple):
    rows: tuple[LayerError, ...]
    history: AmaxJump


class Case(NamedTuple):
    """A layer, in float32, and an input. draws: what is measured, then those for settling. reference: in float64."""

    layer: LayerName
    input: InputName
    plain: nn.Module
    draws: tuple[Operands, ...]
    reference: dict[str, Tensor]


def examine(config: NumericsConfig, progress: Callable[[str], None]) -> Examined:
    """Examine all in this process. Raises UsageError if it does not fit into memory, ModeUnavailable and RunFailed."""
    device = device_for(config.device)
    needed = layers_bytes(config.layers, config.width, config.tokens)
    # Everything is first drawn on the host, so it must fit there too, and not only on a GPU.
    for place in dict.fromkeys((torch.device("cpu"), device)):
        require(f"a width of {config.width}", needed, place, "Lower --width, or free the memory")
    refusals = {label: refusal_of(label, device, config.width) for label in config.modes}
    rows = [_refused(label, refusal) for label, refusal in refusals.items() if refusal is not None]
    able = [label for label, refusal in refusals.items() if refusal is None]
    settle = max((stated(make_mode(label), "tolerance").settle_passes for label in able), default=0)
    for layer, name in product(config.layers, config.inputs):
        if able and (layer == "linear" or not name.endswith(EXACT)):
            progress(f"{layer}, {name} input")
            case = make_case(config, layer, name, settle, device)
            rows += [row for label in able for row in _rows(label, case)]
    rows.sort(key=lambda row: (config.layers.index(row.layer) if row.layer else -1, config.modes.index(row.mode)))
    progress("a jump under delayed scaling")
    return Examined(tuple(rows), examine_jump(config.width, config.seed, device, DELAYED in able))


def make_mode(label: str) -> Mode:
    """Create a mode: anew for every layer, because some keep state. Raises UsageError as registry.find_mode does."""
    entry, recipe = registry.find_mode(label)
    mode: Mode = registry.load(entry)(recipe)
    return mode


def refusal_of(label: str, device: torch.device, width: int) -> ModeUnavailable | None:
    """Return why a mode cannot run here, by its own check; None if it can. Raises UsageError as `make_mode`."""
    try:
        make_mode(label).check(device)
    except ModeUnavailable as refusal:
        return refusal
    multiple = ALIGNMENTS.get(label.partition(",")[0], 1)
    if width % multiple == 0:
        return None
    why = f"{label} scales blocks of {multiple}, and {width} is no multiple"
    return ModeUnavailable(why, f"Use {padded(width, multiple)}")


def make_case(config: NumericsConfig, layer: LayerName, name: InputName, settle: int, device: torch.device) -> Case:
    """Draw the operands of a layer and compute its reference. settle: passes before the one that is measured."""
    exact = name.endswith(EXACT)
    of = shapes(layer, config.width, config.tokens)
    drawn = [draw(name, of, config.seed, 0 if exact else number) for number in range(settle + 1)]
    draws = [Operands(*(values.to(device) for values in operands)) for operands in drawn]
    plain = plain_layer(layer, config.width, config.seed, exact).to(device)
    measured = Operands(*(values.double() for values in draws[0]))
    return Case(layer, name, plain, tuple(draws), _pass(deepcopy(plain).double(), measured))


def _rows(label: str, case: Case) -> list[LayerError]:
    of: dict[str, Any] = {"layer": case.layer, "input": case.input}
    # baseline-fp32 and -tf32 set torch's matrix precision for their process. Here modes share one.
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        found = run_mode(make_mode(label), case)
    except (ModeUnavailable, MeasurementInvalid) as refusal:
        return [_refused(label, refusal, **of)]
    except torch.OutOfMemoryError as error:
        raise RunFailed(f"{label} ran out of memory on {case.layer}", "Lower --width, or free the GPU") from error
    except (RuntimeError, ValueError, AssertionError) as error:
        # A library's own requirement, or a fault of a kernel: the other modes can still be examined.
        return [_refused(label, RunFailed(first_line(error), "Look at the library's version, and at --width"), **of)]
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn
    rows = []
    for tensor in TENSORS:
        numbers = errors(found[tensor], case.reference[tensor])
        if numbers["relative_error"] is None:
            why = MeasurementInvalid(f"{tensor} is not finite", "Do not train with this mode before it is known why")
            rows.append(_refused(label, why, **of, tensor=tensor))
            continue
        saturated, flushed = shares(label, case, tensor)
        numbers |= {"saturated": saturated, "flushed": flushed, "tensor": tensor}
        rows.append(LayerError(mode=label, status="ok", **numbers, **of))
    return rows


def _refused(label: str, why: Fp8benchError, **of: Any) -> LayerError:
    return LayerError(mode=label, status=why.status, reason=why.what, remedy=why.remedy, **of)


def run_mode(mode: Mode, case: Case) -> dict[str, Tensor]:
    """Convert a copy of the layer, let it settle, and return its results on the draw that is measured, by tensor."""
    module = convert(mode, deepcopy(case.plain))
    for operands in case.draws[1 : 1 + stated(mode, "tolerance").settle_passes]:
        _pass(module, operands, mode)
    return _pass(module, case.draws[0], mode)


def _pass(module: nn.Module, operands: Operands, mode: Mode | None = None) -> dict[str, Tensor]:
    given = operands.input.detach().clone().requires_grad_()
    for weight in weights(module):
        weight.grad = None
    with ExitStack() as context:
        if mode is not None:
            context.enter_context(autocast(mode, given.device))
            context.enter_context(mode.forward_context())
        output = module(given)
    output.backward(operands.output_gradient.to(output.dtype))
    return {
        "output": output.detach(),
        "input_gradient": torch.zeros_like(given) if given.grad is None else given.grad,
        "weight_gradient": torch.cat([one.grad.flatten() for one in weights(module) if one.grad is not None]),
    }


def shares(label: str, case: Case, tensor: TensorName) -> tuple[float | None, float | None]:
    """Return (saturated, flushed) of the worse operand; (None, None) if the casts are unknown, as inside a block."""
    known = CASTS.get(label, {}).get(tensor, ()) if case.layer == "linear" else ()
    if not known:
        return None, None
    made = []
    for of in known:
        weight = weights(case.plain)[0].detach()
        values = [weight if of.operand == "weight" else getattr(one, of.operand) for one in case.draws]
        if label == DELAYED:
            # The passes before this one are the history. Its largest amax gives the smallest of their scales.
            scale = torch.stack([scale_for(earlier, of.to) for earlier in values[1:]]).amin()
        else:
            scale = scale_for(values[0], of.to, of.across, of.power_of_2)
        made.append(scaled_cast(values[0], scale, of.to))
    return max(one.saturated for one in made), max(one.flushed for one in made)


def errors(found: Tensor, reference: Tensor) -> dict[str, Any]:
    """Return fields of `LayerError`; None: not finite. found: any dtype. reference: float64, of the same shape."""
    values = found.detach()
    exact, other = reference.double().flatten(), values.double().flatten()
    size = exact.norm()
    # A division by 0 gives nan or inf.
    relative = float((other - exact).norm() / size)
    # The values decide, because the gradient of a float32 weight is float32 even if it was computed in bfloat16.
    in_bf16 = torch.equal(values.to(torch.bfloat16).to(values.dtype), values)
    rounded = exact.to(torch.bfloat16 if in_bf16 else torch.float32).double()
    numbers = {
        "relative_error": relative,
        "sqnr_db": -20 * math.log10(relative) if relative else math.inf,
        "cosine": float(other @ exact / (other.norm() * size)),
        "max_abs_error": float((other - exact).abs().max()),
        "rounding_error": float((rounded - exact).norm() / size),
    }
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {**finite, "held_in": "bfloat16" if in_bf16 else "float32"}
