"""One layer after the other through one mode after the other, each result held against float64.

The reference is the plain layer in float64 with the very float32 weights, input and output gradient that the mode is
given; whatever the mode rounds, its operands to bfloat16 among it, is its own error. Forwards the mode runs as in
training, under its context and bf16 autocast, and backwards from a given output gradient: no loss is needed.

  weight_gradient   of a block: those of its four linear layers one after the other.
  a block's output  has the residual stream in it, which no mode casts: its error is smaller for that. Transformer
                    Engine's layer keeps that stream in bfloat16, whose own rounding is 1.7e-3, and its GELU is the tanh
                    form: te-bf16 shows what these add.
  -exact inputs     are for the linear layer alone, since the operands inside a block are made there.

Delayed scaling begins with a scale of 1. It first sees as many other draws of the same input as the mode asks for
(`settle_passes`), as it would in training; of an -exact input it sees the same draw again, since only its own amax is
the power of two that leaves it as it is.

saturated and flushed come from our own casts of the same float32 operands (`quantiser`), under the scale that the
recipe would give them: what a library does is in its result, and cannot be seen there value by value.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import Mode
from fp8bench.numerics.errors import errors
from fp8bench.numerics.inputs import Operands, draw, is_exact
from fp8bench.numerics.layers import autocast, convert, plain_layer, shapes, weight_gradient, weights
from fp8bench.numerics.quantiser import cast, scale_for
from fp8bench.numerics.recipes import DELAYED, Opened, Operand, OperandCast, casts
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid, ModeUnavailable, RunFailed, Status
from fp8bench.schema.numerics import TENSORS, InputName, LayerError, LayerName, NumericsConfig, TensorName

_STATUS: dict[type[Fp8benchError], Status] = {ModeUnavailable: "unsupported", MeasurementInvalid: "invalid"}

Results = dict[TensorName, Tensor]


@dataclass(frozen=True)
class Case:
    """A layer and an input. plain: on the device, float32. draws: the one that counts, then those to settle with."""

    layer: LayerName
    input: InputName
    plain: nn.Module
    draws: tuple[Operands, ...]
    reference: Results


def layer_errors(
    config: NumericsConfig, opened: Sequence[Opened], device: torch.device, told: Callable[[str], None]
) -> list[LayerError]:
    """The rows: mode by mode, layer by layer, input by input. told: hears of each layer and input that begins."""
    able = [mode for mode in opened if mode.refusal is None]
    rows = [_refused(mode.label, mode.refusal) for mode in opened if mode.refusal is not None]
    if able:
        settle = max(_settle_passes(mode.make()) for mode in able)
        for layer, name in _cases(config):
            told(f"{layer}, {name} input")
            case = _case(config, layer, name, settle, device)
            for mode in able:
                rows += _rows(mode, case, device)
    order = {mode.label: place for place, mode in enumerate(opened)}
    return sorted(rows, key=lambda row: (config.layers.index(row.layer) if row.layer else -1, order[row.mode]))


def _cases(config: NumericsConfig) -> list[tuple[LayerName, InputName]]:
    return [
        (layer, name) for layer in config.layers for name in config.inputs if layer == "linear" or not is_exact(name)
    ]


def _case(config: NumericsConfig, layer: LayerName, name: InputName, settle: int, device: torch.device) -> Case:
    of = shapes(layer, config.width, config.tokens)
    count = 1 if is_exact(name) else settle + 1
    draws = [draw(name, of.input, of.output, config.seed, number).to(device) for number in range(count)]
    draws += draws[:1] * (settle + 1 - count)
    plain = plain_layer(layer, config.width, config.seed, is_exact(name)).to(device)
    exact = Operands(draws[0].input.double(), draws[0].output_gradient.double())
    return Case(layer, name, plain, tuple(draws), _pass(deepcopy(plain).double(), exact))


def _rows(opened: Opened, case: Case, device: torch.device) -> list[LayerError]:
    """One row a tensor; or one that says why there is none."""
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
        # What a library says of its own needs, or a kernel of its own fault: the other modes can still be examined.
        said = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        return [_refused(opened.label, RunFailed(said, "Look at the library's version, and at --width"), case)]
    return [_row(opened.label, case, tensor, found[tensor]) for tensor in TENSORS]


def run_mode(mode: Mode, case: Case, device: torch.device) -> Results:
    """Convert a copy of the layer, let it settle, and run it on the draw that counts."""
    module = convert(mode, deepcopy(case.plain))
    for operands in case.draws[1 : 1 + _settle_passes(mode)]:
        _pass(module, operands, mode, device)
    return _pass(module, case.draws[0], mode, device)


def _pass(
    module: nn.Module, operands: Operands, mode: Mode | None = None, device: torch.device | None = None
) -> Results:
    """Forwards and backwards once. Without a mode: as it is."""
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
    result = errors(found, case.reference[tensor])
    if not math.isfinite(result.relative_error):
        return LayerError(
            mode=label,
            status="invalid",
            reason=f"{tensor} is not finite",
            remedy="Do not train with this mode before it is known why",
            layer=case.layer,
            input=case.input,
            tensor=tensor,
        )
    saturated, flushed = _shares(label, case, tensor)
    return LayerError(
        mode=label,
        status="ok",
        layer=case.layer,
        input=case.input,
        tensor=tensor,
        relative_error=result.relative_error,
        sqnr_db=result.sqnr_db if math.isfinite(result.sqnr_db) else None,
        cosine=result.cosine if math.isfinite(result.cosine) else None,
        max_abs_error=result.max_abs_error,
        held_in=result.held_in,
        rounding_error=result.rounding_error,
        saturated=saturated,
        flushed=flushed,
    )


def _shares(label: str, case: Case, tensor: TensorName) -> tuple[float | None, float | None]:
    """(saturated, flushed) of the worse operand; (None, None) where the casts are not known, as inside a block."""
    known = casts(label, tensor) if case.layer == "linear" else ()
    if not known:
        return None, None
    made = [cast(_operand(case, of.operand), _scale(label, case, of), of.grid) for of in known]
    return max(one.saturated for one in made), max(one.flushed for one in made)


def _scale(label: str, case: Case, of: OperandCast) -> Tensor:
    if label != DELAYED:
        return scale_for(_operand(case, of.operand), of.grid, of.across, of.power_of_2)
    # The largest amax of the passes before is the smallest scale of them.
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
    """baseline-fp32 and -tf32 set torch's matrix precision for their process; here modes share one."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn
