"""Scaled casts to fp8: by definition, by recipe, and over time. A reference independent of the libraries it checks.

A format with m bits of mantissa has 2^m evenly spaced values from each power of two to the next; below its smallest
normal power the spacing stays the same, down to zero. So a value v is rounded by

    exponent = max(floor(log2 |v|), least_exponent)        read from the bits of the float32
    step     = 2^(exponent - m)
    rounded  = step * round(v / step)                      to nearest, ties to even

each of which is exact in float32. Larger values than the largest saturate, as in Transformer Engine and torchao.

fp8 has too few exponents for a tensor as it is, so it is multiplied by a scale first and divided by it afterwards:
scale = largest / amax, where amax is the largest magnitude of what shares the scale (a tensor, a row, a block).

A linear layer has three GEMMs, each of two operands:

    output           input            x  weight
    input_gradient   output gradient  x  weight
    weight_gradient  output gradient  x  input

  tensorwise, current  one scale a tensor, from the tensor itself; output gradients in e5m2, the others in e4m3.
  delayed              the same formats; the scale comes from the tensors of earlier passes.
  rowwise              e4m3 throughout; a scale for each row or column that is summed over, a power of two.
  rowwise_with_gw_hp   the same, but the weight gradient is computed in bfloat16, and the weight has one scale in the
                       GEMM that gives the input gradient.

Sources: torchao 0.18, float8/float8_linear.py and config.py; Transformer Engine 2.20, common/recipe. Blocks of 128 and
of 32 values (te-fp8:block and te-fp8:mxfp8) are not simulated here, and their shares are unknown.

Current scaling reads a tensor twice: for its amax, then to cast it. Delayed scaling casts with a scale from earlier
steps, and records the amax on the way. After the step:

    window = the amaxes of the last `history_len` steps, this one among them
    amax   = max(window), or this step's alone (algo `most_recent`)
    scale  = largest / 2^margin / amax, in float32            for the next step; the first step's is 1

A step whose amax is 0 leaves window and scale as they are. This is what Transformer Engine does: the casts of a step
write their amaxes into row 0 of `amax_history`; leaving the outermost autocast (for gradients, the end of the first
module's backward pass) sets the scale from the whole table, rolls it by one row and zeroes row 0
(reduce_and_update_fp8_tensors in pytorch/quantization.py of 2.20, which calls kernel_bulk in
common/recipe/delayed_scaling.cu).

So the one step at which values jump up is cast with too large a scale, and saturates. After a fall the scale stays too
small until the large amax has left the window; that costs little until values fall below fp8's smallest.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fp8bench.modes.transformer_engine import import_te
from fp8bench.numerics.definitions import DEFINITIONS, decode
from fp8bench.schema.numerics import Algo, AmaxJump, ScalingTrace, TensorName

Operand = Literal["input", "weight", "output_gradient"]
DELAYED = "te-fp8:delayed"

EXPONENT_BIAS = 127
MANTISSA_BITS = 23
"""Of a float32."""

STEPS = 100
UP_AT = 20
DOWN_AT = 60
FACTOR = 100.0
ROWS = 128
"""Values a step: so many rows as wide as the layer."""

INPUT = 0
"""The input's place among a linear module's forward tensors (input, weight, output) in fp8_meta."""


@dataclass(frozen=True)
class Grid:
    """A format's values: bits of mantissa, exponent of the smallest normal value, and the largest value."""

    mantissa_bits: int
    least_exponent: int
    largest: float


def grid(name: str) -> Grid:
    """Of a format of DEFINITIONS."""
    definition = DEFINITIONS[name]
    return Grid(definition.mantissa_bits, 1 - definition.bias, decode(definition, definition.largest))


E4M3 = grid("float8_e4m3fn")
E5M2 = grid("float8_e5m2")
BOTH = Grid(E5M2.mantissa_bits, E4M3.least_exponent, E4M3.largest)
"""Values of e4m3 that e5m2 has too: the range of the one, the mantissa of the other."""


@dataclass(frozen=True)
class ScaledCast:
    """values: of a tensor after a cast, float32, divided by the scale again. saturated: share of the values that would
    round to more than the largest. flushed: share of the values that were not zero and became zero.
    """

    values: Tensor
    saturated: float
    flushed: float


def scaled_cast(values: Tensor, scale: Tensor | float, grid: Grid) -> ScaledCast:
    """values times scale, rounded to the grid, saturated, and divided by the scale. scale: broadcast, float32."""
    scaled = values.float() * scale
    rounded = round_to(scaled, grid)
    flushed = (rounded == 0) & (scaled != 0)
    saturated = rounded.abs() > grid.largest
    return ScaledCast(rounded.clamp(-grid.largest, grid.largest) / scale, _share(saturated), _share(flushed))


def round_to(values: Tensor, grid: Grid) -> Tensor:
    """float32 values on the grid's spacing; those beyond its largest value stay beyond it."""
    exponent = ((values.float().view(torch.int32) >> MANTISSA_BITS) & 0xFF) - EXPONENT_BIAS
    of_step = exponent.clamp(min=grid.least_exponent) - grid.mantissa_bits
    step = ((of_step + EXPONENT_BIAS) << MANTISSA_BITS).view(torch.float32)
    return torch.round(values.float() / step) * step


def scale_for(values: Tensor, grid: Grid, across: int | None = None, power_of_2: bool = False) -> Tensor:
    """largest / amax, float32. across: the dimension whose values share a scale; None: all do, and it is one number.

    power_of_2: rounded down to one, so that scaling itself rounds nothing.
    """
    magnitudes = values.float().abs()
    amax = magnitudes.amax() if across is None else magnitudes.amax(dim=across, keepdim=True)
    # A tensor of zeros may have any scale.
    scale = torch.where(amax > 0, grid.largest / amax.double(), 1.0).float()
    if not power_of_2:
        return scale
    return (scale.view(torch.int32) >> MANTISSA_BITS << MANTISSA_BITS).view(torch.float32)


def representable(values: Tensor, grid: Grid) -> Tensor:
    """The values moved to the grid, times a power of two: near what they were, and exact in fp8.

    The largest magnitude becomes `grid.largest` times that power of two. So the scale of the whole tensor is a power of
    two, under which every value is on the grid. So it is under any larger power of two that does not take the largest
    beyond the format, as the scale of a row or a block.
    """
    scale = scale_for(values, grid)
    nearest_power = torch.round(torch.log2(scale.double()))
    moved = round_to(values.float() * scale, grid).clamp(-grid.largest, grid.largest)
    return (moved.double() * torch.exp2(-nearest_power)).float()


def _share(which: Tensor) -> float:
    return float(which.double().mean())


@dataclass(frozen=True)
class OperandCast:
    """How an operand is cast for one GEMM. across: the dimension that shares a scale, of input [tokens, in], weight
    [out, in] or output gradient [tokens, out]; None: the whole tensor does.
    """

    operand: Operand
    grid: Grid
    across: int | None = None
    power_of_2: bool = False


Casts = dict[TensorName, tuple[OperandCast, ...]]

PER_TENSOR: Casts = {
    "output": (OperandCast("input", E4M3), OperandCast("weight", E4M3)),
    "input_gradient": (OperandCast("output_gradient", E5M2), OperandCast("weight", E4M3)),
    "weight_gradient": (OperandCast("output_gradient", E5M2), OperandCast("input", E4M3)),
}
ROWWISE: Casts = {
    "output": (OperandCast("input", E4M3, -1, True), OperandCast("weight", E4M3, -1, True)),
    "input_gradient": (OperandCast("output_gradient", E4M3, -1, True), OperandCast("weight", E4M3, 0, True)),
    "weight_gradient": (OperandCast("output_gradient", E4M3, 0, True), OperandCast("input", E4M3, 0, True)),
}
ROWWISE_WITH_GW_HP: Casts = {
    "output": ROWWISE["output"],
    "input_gradient": (OperandCast("output_gradient", E4M3, -1, True), OperandCast("weight", E4M3, None, True)),
}
CASTS: dict[str, Casts] = {
    "torchao-float8:tensorwise": PER_TENSOR,
    "torchao-float8:rowwise": ROWWISE,
    "torchao-float8:rowwise_with_gw_hp": ROWWISE_WITH_GW_HP,
    DELAYED: PER_TENSOR,
    "te-fp8:current": PER_TENSOR,
}
"""By mode label. A mode or a tensor that is not here is not cast, or not in a way that is simulated."""


def operand_casts(label: str, tensor: TensorName) -> tuple[OperandCast, ...]:
    """The casts of the GEMM that gives the tensor; empty where they are unknown."""
    return CASTS.get(label, {}).get(tensor, ())


@dataclass(frozen=True)
class Delayed:
    """Delayed scaling's two choices, in Transformer Engine's words (amax_history_len, amax_compute_algo)."""

    history_len: int
    algo: Algo


SCHEMES = (Delayed(1024, "max"), Delayed(16, "max"), Delayed(16, "most_recent"))
"""Transformer Engine's default first."""


def generator(seed: int, *what: object) -> torch.Generator:
    """A CPU generator of this seed and purpose alone, so that the same numbers come on every machine."""
    digest = hashlib.sha256("/".join(map(str, (seed, *what))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def jump(width: int, seed: int) -> Iterator[Tensor]:
    """The values of each step: [ROWS, width] float32 that bfloat16 holds too, so that casting to it loses nothing."""
    by = generator(seed, "jump")
    for step in range(STEPS):
        size = FACTOR if UP_AT <= step < DOWN_AT else 1.0
        yield (torch.randn(ROWS, width, generator=by) * size).bfloat16().float()


def next_scale(amaxes: Sequence[float], scheme: Delayed, scale: float, largest: float, margin: int = 0) -> float:
    """The scale that steps with these amaxes (the latest last) leave to the next. scale: the latest step's own."""
    if not amaxes or amaxes[-1] == 0:
        return scale
    window = [amax for amax in amaxes if amax != 0][-scheme.history_len :]
    amax = max(window) if scheme.algo == "max" else window[-1]
    if not math.isfinite(amax):
        return scale
    with np.errstate(over="ignore"):
        new = np.float32(largest * 2.0**-margin) / np.float32(amax)
    return float(new if np.isfinite(new) else np.finfo(np.float32).max)


def simulate(values: Sequence[Tensor], scheme: Delayed | None) -> ScalingTrace:
    """Cast the tensor of each step to e4m3 under the scheme; None is current scaling."""
    amaxes: list[float] = []
    scales: list[float] = []
    scale = 1.0
    for tensor in values:
        if scheme is None:
            scale = float(scale_for(tensor, E4M3))
        scales.append(scale)
        amaxes.append(float(tensor.abs().amax()))
        if scheme is not None:
            scale = next_scale(amaxes, scheme, scale, E4M3.largest)
    return _trace(values, scheme, "simulated", amaxes, scales)


def read_transformer_engine(values: Sequence[Tensor], scheme: Delayed, device: torch.device) -> ScalingTrace:
    """The same steps through a te.Linear: its input's amax and scale, from its fp8_meta. Needs a GPU with fp8.

    Both are read inside the autocast, where the amax is this step's and the scale still the one that it used.
    """
    from transformer_engine.common.recipe import DelayedScaling

    te = import_te()
    recipe = DelayedScaling(amax_history_len=scheme.history_len, amax_compute_algo=scheme.algo)
    layer = te.Linear(values[0].shape[-1], 16, bias=False, params_dtype=torch.bfloat16, device=device)
    amaxes: list[float] = []
    scales: list[float] = []
    for tensor in values:
        with torch.autocast(device.type, dtype=torch.bfloat16), te.autocast(enabled=True, recipe=recipe):
            layer(tensor.to(device))
            state: Any = layer.fp8_meta["scaling_fwd"]
            scales.append(float(state.scale[INPUT]))
            amaxes.append(float(state.amax_history[0][INPUT]))
    return _trace(values, scheme, "transformer_engine", amaxes, scales)


def examine_jump(width: int, seed: int, device: torch.device, delayed_runs: bool) -> AmaxJump:
    """Every scheme and current scaling simulated; and read from Transformer Engine where it runs."""
    values = list(jump(width, seed))
    traces = [simulate(values, scheme) for scheme in (*SCHEMES, None)]
    if delayed_runs:
        traces += [read_transformer_engine(values, scheme, device) for scheme in SCHEMES]
    constants: Any = {"steps": STEPS, "up_at": UP_AT, "down_at": DOWN_AT, "factor": FACTOR}
    return AmaxJump(largest=E4M3.largest, traces=tuple(traces), **constants)


def _trace(
    values: Sequence[Tensor], scheme: Delayed | None, source: Any, amaxes: Sequence[float], scales: Sequence[float]
) -> ScalingTrace:
    """Our own cast of the values under these scales, wherever the scales are from."""
    made = [scaled_cast(tensor, scale, E4M3) for tensor, scale in zip(values, scales, strict=True)]
    errors = [float((one.values - tensor).norm() / tensor.norm()) for one, tensor in zip(made, values, strict=True)]
    return ScalingTrace(
        scaling="current" if scheme is None else "delayed",
        algo=None if scheme is None else scheme.algo,
        history_len=None if scheme is None else scheme.history_len,
        source=source,
        amax=tuple(amaxes),
        scale=tuple(scales),
        saturated=tuple(one.saturated for one in made),
        flushed=tuple(one.flushed for one in made),
        relative_error=tuple(errors),
    )
