"""What `fp8bench numerics` examines: each layer under each mode, with every result compared with float64, and the jump
under delayed scaling.

The reference is the plain layer in float64 with the mode's own float32 weights, input and output gradient. Whatever the
mode rounds, including its operands to bfloat16, counts as its error. The mode runs forward as in training, in its
context and bf16 autocast, and backward from a given output gradient, without a loss.

  weight_gradient   for a block: the gradients of its four linear layers, concatenated.
  a block's output  includes the residual stream, which no mode casts, so its error is smaller. Transformer Engine's
                    layer keeps that stream in bfloat16, whose rounding alone is 1.7e-3, and its GELU is the tanh form:
                    te-bf16 shows how much these add.
  -exact inputs     apply to the linear layer only, because the operands inside a block are computed there.

Delayed scaling starts with a scale of 1, and first sees as many other draws of the input as the mode needs
(`settle_passes`). For an -exact input it sees the same draw, because only its own amax gives the power of two that
keeps it exact.

saturated and flushed come from this package's own casts of the same float32 operands (`scaling`), under the scale that
the recipe would use, because a library's casts cannot be observed value by value.

Errors of a tensor are computed in float64 over all elements at once:

relative_error  |found - reference| / |reference|, |.| the Euclidean norm. e4m3 rounds a value by up to 1/16 of it, and
                normal values by 0.026 in this norm (e5m2: 0.053); a product of two of them is off by the root of the
                sum of the squares, 0.037, and so is a sum of many products of either sign.
sqnr_db         -20 log10(relative_error), the signal-to-quantisation-noise ratio in decibels: infinite for no error.
                A bit of mantissa is worth 6.
cosine          found . reference / (|found| |reference|): insensitive to a wrong size, as an optimizer like Adam is.
max_abs_error   the largest |found - reference|.
rounding_error  the relative error of the reference itself when rounded to the narrowest of bfloat16 and float32 that
                holds every found value. bfloat16's is about 1.7e-3: no result in bfloat16 can be nearer than that.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench import registry
from fp8bench.modes.protocol import Mode
from fp8bench.numerics.layers import (
    Operands,
    autocast,
    convert,
    draw,
    is_exact,
    plain_layer,
    shapes,
    weight_gradient,
    weights,
)
from fp8bench.numerics.memory import free_bytes, layers_bytes, require
from fp8bench.numerics.scaling import DELAYED, Operand, OperandCast, examine_jump, operand_casts, scale_for, scaled_cast
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid, ModeUnavailable, RunFailed, Status, first_line
from fp8bench.schema.formats import padded
from fp8bench.schema.numerics import TENSORS, AmaxJump, InputName, LayerError, LayerName, NumericsConfig, TensorName

ALIGNMENTS = {"te-fp8:mxfp8": 32}
"""The multiples that widths must be divisible by, for modes that need more than 16."""

_STATUS: dict[type[Fp8benchError], Status] = {ModeUnavailable: "unsupported", MeasurementInvalid: "invalid"}

Results = dict[TensorName, Tensor]


@dataclass(frozen=True)
class Examined:
    """The errors of each mode, and the traces of the jump."""

    rows: tuple[LayerError, ...]
    history: AmaxJump


@dataclass(frozen=True)
class Case:
    """A layer and an input. plain: on the device, float32. draws: the one that is measured, then those for settling."""

    layer: LayerName
    input: InputName
    plain: nn.Module
    draws: tuple[Operands, ...]
    reference: Results


def device_for(config: NumericsConfig) -> torch.device:
    """Return the device. Raises ModeUnavailable if torch cannot use it."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModeUnavailable(
            "this machine has a GPU, and torch cannot use it",
            "Install a torch for CUDA, or hide the GPU with CUDA_VISIBLE_DEVICES= to use the CPU",
        )
    return torch.device(config.device)


def examine(config: NumericsConfig, progress: Callable[[str], None]) -> Examined:
    """Examine everything, in this process. progress: called at the beginning of each stage.

    Raises UsageError for a width that does not fit into memory, ModeUnavailable and RunFailed.
    """
    device = device_for(config)
    needed = layers_bytes(config.layers, config.width, config.tokens)
    # Everything is first drawn on the host, so it must fit there too, and not only on a GPU.
    for place in dict.fromkeys((torch.device("cpu"), device)):
        where = torch.cuda.get_device_name(place) if place.type == "cuda" else "this host"
        require(f"a width of {config.width}", needed, free_bytes(place), where, "Lower --width, or free the memory")
    opened = [open_mode(label, device, config.width) for label in config.modes]
    rows = layer_errors(config, opened, device, progress)
    progress("a jump under delayed scaling")
    delayed_runs = any(mode.label == DELAYED and mode.refusal is None for mode in opened)
    return Examined(tuple(rows), examine_jump(config.width, config.seed, device, delayed_runs))


@dataclass(frozen=True)
class Opened:
    """A mode that can run here, or why it cannot. It is created anew for every layer, because some modes keep state."""

    label: str
    refusal: ModeUnavailable | None

    def make(self) -> Mode:
        """Create the mode."""
        entry, recipe = registry.find_mode(self.label)
        mode: Mode = registry.load(entry)(recipe)
        return mode


def open_mode(label: str, device: torch.device, width: int) -> Opened:
    """Check a mode by its own check. Raises UsageError as registry.find_mode does."""
    opened = Opened(label, None)
    try:
        opened.make().check(device)
    except ModeUnavailable as refusal:
        return Opened(label, refusal)
    multiple = ALIGNMENTS.get(label.partition(",")[0], 1)
    if width % multiple:
        why = f"{label} scales blocks of {multiple}, and {width} is no multiple"
        return Opened(label, ModeUnavailable(why, f"Use {padded(width, multiple)}"))
    return opened


def layer_errors(
    config: NumericsConfig, opened: Sequence[Opened], device: torch.device, progress: Callable[[str], None]
) -> list[LayerError]:
    """Return the rows: mode by mode, layer by layer, input by input. progress: called for each layer and input."""
    able = [mode for mode in opened if mode.refusal is None]
    rows = [_refused(mode.label, mode.refusal) for mode in opened if mode.refusal is not None]
    if able:
        settle = max(_settle_passes(mode.make()) for mode in able)
        for layer, name in product(config.layers, config.inputs):
            if layer != "linear" and is_exact(name):
                continue
            progress(f"{layer}, {name} input")
            case = _case(config, layer, name, settle, device)
            for mode in able:
                rows += _rows(mode, case, device)
    order = {mode.label: place for place, mode in enumerate(opened)}
    return sorted(rows, key=lambda row: (config.layers.index(row.layer) if row.layer else -1, order[row.mode]))


def _case(config: NumericsConfig, layer: LayerName, name: InputName, settle: int, device: torch.device) -> Case:
    of = shapes(layer, config.width, config.tokens)
    count = 1 if is_exact(name) else settle + 1
    draws = [draw(name, of.input, of.output, config.seed, number).to(device) for number in range(count)]
    draws += draws[:1] * (settle + 1 - count)
    plain = plain_layer(layer, config.width, config.seed, is_exact(name)).to(device)
    exact = Operands(draws[0].input.double(), draws[0].output_gradient.double())
    return Case(layer, name, plain, tuple(draws), _pass(deepcopy(plain).double(), exact))


def _rows(opened: Opened, case: Case, device: torch.device) -> list[LayerError]:
    """Return one row per tensor, or a single row with the reason why there are none."""
    try:
        with _own_matrix_precision():
            found = run_mode(opened.make(), case, device)
    except (ModeUnavailable, MeasurementInvalid) as refusal:
        return [_refused(opened.label, refusal, case)]
    except torch.OutOfMemoryError as error:
        raise RunFailed(
            f"{opened.label} ran out of memory on {case.layer}", "Lower --width, or free the GPU"
        ) from error
    except (RuntimeError, ValueError, AssertionError) as error:
        # A library's own requirement, or a fault of a kernel: the other modes can still be examined.
        failed = RunFailed(first_line(error), "Look at the library's version, and at --width")
        return [_refused(opened.label, failed, case)]
    return [_row(opened.label, case, tensor, found[tensor]) for tensor in TENSORS]


def run_mode(mode: Mode, case: Case, device: torch.device) -> Results:
    """Convert a copy of the layer, let it settle, and run it on the draw that is measured."""
    module = convert(mode, deepcopy(case.plain))
    for operands in case.draws[1 : 1 + _settle_passes(mode)]:
        _pass(module, operands, mode, device)
    return _pass(module, case.draws[0], mode, device)


def _pass(
    module: nn.Module, operands: Operands, mode: Mode | None = None, device: torch.device | None = None
) -> Results:
    """Run one forward and one backward pass. Without a mode, the module runs as it is."""
    given = operands.input.detach().clone().requires_grad_()
    for weight in weights(module):
        weight.grad = None
    if mode is None or device is None:
        output = module(given)
    else:
        with autocast(mode, device), mode.forward_context():
            output = module(given)
    output.backward(operands.output_gradient.to(output.dtype))
    gradient = torch.zeros_like(given) if given.grad is None else given.grad
    return {"output": output.detach(), "input_gradient": gradient, "weight_gradient": weight_gradient(module)}


def _row(label: str, case: Case, tensor: TensorName, found: Tensor) -> LayerError:
    of: Any = {"mode": label, "layer": case.layer, "input": case.input, "tensor": tensor}
    found_errors = vars(errors(found, case.reference[tensor])).items()
    finite: Any = {name: value if name == "held_in" or math.isfinite(value) else None for name, value in found_errors}
    if finite["relative_error"] is None:
        remedy = "Do not train with this mode before it is known why"
        return LayerError(status="invalid", reason=f"{tensor} is not finite", remedy=remedy, **of)
    saturated, flushed = _shares(label, case, tensor)
    return LayerError(status="ok", saturated=saturated, flushed=flushed, **finite, **of)


def _shares(label: str, case: Case, tensor: TensorName) -> tuple[float | None, float | None]:
    """Return (saturated, flushed) of the worse operand; (None, None) if the casts are unknown, as inside a block."""
    known = operand_casts(label, tensor) if case.layer == "linear" else ()
    if not known:
        return None, None
    made = [scaled_cast(_operand(case, of.operand), _scale(label, case, of), of.grid) for of in known]
    return max(one.saturated for one in made), max(one.flushed for one in made)


def _scale(label: str, case: Case, of: OperandCast) -> Tensor:
    if label != DELAYED:
        return scale_for(_operand(case, of.operand), of.grid, of.across, of.power_of_2)
    # The passes before this one are the history. Its largest amax gives the smallest of their scales.
    earlier = range(1, len(case.draws))
    return torch.stack([scale_for(_operand(case, of.operand, number), of.grid) for number in earlier]).amin()


def _operand(case: Case, operand: Operand, number: int = 0) -> Tensor:
    if operand == "weight":
        return weights(case.plain)[0].detach()
    return case.draws[number].input if operand == "input" else case.draws[number].output_gradient


def _refused(label: str, why: Fp8benchError, case: Case | None = None) -> LayerError:
    return LayerError(
        mode=label,
        status=_STATUS.get(type(why), "failed"),
        reason=why.what,
        remedy=why.remedy,
        layer=case.layer if case else None,
        input=case.input if case else None,
    )


def _settle_passes(mode: Mode) -> int:
    return getattr(mode, "tolerance", Mode.tolerance).settle_passes


@contextmanager
def _own_matrix_precision() -> Iterator[None]:
    """Restore torch's matrix precision, which baseline-fp32 and -tf32 set for their process. Here modes share one."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


@dataclass(frozen=True)
class Errors:
    """See the module's docstring. sqnr_db: inf if there is no error. cosine: nan if a tensor is all zeros."""

    relative_error: float
    sqnr_db: float
    cosine: float
    max_abs_error: float
    held_in: str
    rounding_error: float


def errors(found: Tensor, reference: Tensor) -> Errors:
    """Return the errors. found: any dtype and shape. reference: float64, same shape; one of zeros gives nan or inf."""
    exact, other = reference.double().flatten(), found.detach().double().flatten()
    whole = float(exact.norm())
    relative = _ratio(float((other - exact).norm()), whole)
    held_in = narrowest(found)
    rounded = exact.to(held_in).double()
    return Errors(
        relative_error=relative,
        sqnr_db=sqnr_db(relative),
        cosine=_ratio(float(other @ exact), float(other.norm()) * whole),
        max_abs_error=float((other - exact).abs().max()),
        held_in=str(held_in).removeprefix("torch."),
        rounding_error=_ratio(float((rounded - exact).norm()), whole),
    )


def sqnr_db(relative_error: float) -> float:
    """Return -20 log10 of the relative error; inf for 0."""
    return math.inf if relative_error == 0 else -20 * math.log10(relative_error)


def narrowest(values: Tensor) -> torch.dtype:
    """Return bfloat16 if it can represent every value, otherwise float32. The values decide, because the gradient of a
    float32 weight is float32 even if it was computed in bfloat16.
    """
    values = values.detach()
    return torch.bfloat16 if torch.equal(values.to(torch.bfloat16).to(values.dtype), values) else torch.float32


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return math.nan if part == 0 else math.inf
    return part / whole
