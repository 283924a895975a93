"""Scaled casts to fp8: by definition, by recipe, and over time. A reference independent of the libraries it checks.

Values beyond max saturate, as in Transformer Engine and torchao. A tensor is multiplied by scale = max / amax first and
divided by it afterwards, where amax is the largest magnitude of what shares the scale. Delayed scaling casts with a
scale of earlier steps: the step at which values jump up saturates, and after a fall the scale stays too small until the
large amax has left the window (reduce_and_update_fp8_tensors, common/recipe/delayed_scaling.cu).
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fp8bench.modes.transformer_engine import import_te
from fp8bench.numerics.definitions import E4M3, E5M2, FLOAT32, Definition
from fp8bench.schema.numerics import Algo, AmaxJump, ScalingTrace, TensorName

BOTH = Definition("float7_e4m2", 4, 2, ())
"""The values that both e4m3 and e5m2 have: e4m3's range with e5m2's mantissa."""

DELAYED = "te-fp8:delayed"
STEPS, UP_AT, DOWN_AT, FACTOR, ROWS = 100, 20, 60, 100.0, 128
"""The jump: its steps, where values grow by FACTOR and shrink again, and the rows of a step, as wide as the layer."""


class ScaledCast(NamedTuple):
    """A tensor after a cast. values: float32, divided by the scale again. saturated: share of the values that would
    round to more than the largest. flushed: share of the values that were not zero and became zero.
    """

    values: Tensor
    saturated: float
    flushed: float


def scaled_cast(values: Tensor, scale: Tensor | float, to: Definition) -> ScaledCast:
    """Multiply values by the scale, round them, saturate, and divide by the scale (float32, broadcast)."""
    scaled = values.float() * scale
    rounded = round_to(scaled, to)
    lost = (rounded.abs() > to.max), (rounded == 0) & (scaled != 0)
    return ScaledCast(rounded.clamp(-to.max, to.max) / scale, *(float(share.double().mean()) for share in lost))


def round_to(values: Tensor, to: Definition) -> Tensor:
    """Round float32 values to the format's spacing. Values beyond its largest value remain beyond it."""
    exponent = ((values.float().view(torch.int32) >> FLOAT32.mantissa_bits) & 0xFF) - FLOAT32.bias
    of_step = exponent.clamp(min=1 - to.bias) - to.mantissa_bits
    step = ((of_step + FLOAT32.bias) << FLOAT32.mantissa_bits).view(torch.float32)
    return torch.round(values.float() / step) * step


def scale_for(values: Tensor, to: Definition, across: int | None = None, power_of_2: bool = False) -> Tensor:
    """Return max / amax, float32. across: the dimension that shares one; None: all. power_of_2: rounded down to one."""
    magnitudes = values.float().abs()
    amax = magnitudes.amax() if across is None else magnitudes.amax(dim=across, keepdim=True)
    # A tensor of zeros may have any scale.
    scale = torch.where(amax > 0, to.max / amax.double(), 1.0).float()
    without_mantissa = scale.view(torch.int32) >> FLOAT32.mantissa_bits << FLOAT32.mantissa_bits
    return without_mantissa.view(torch.float32) if power_of_2 else scale


def representable(values: Tensor, to: Definition) -> Tensor:
    """Return the values moved to the format's, times a power of two: exact in fp8 under the scale of the tensor, which
    is a power of two, and under any larger one that does not move the largest beyond the format.
    """
    scale = scale_for(values, to)
    nearest_power = torch.round(torch.log2(scale.double()))
    moved = round_to(values.float() * scale, to).clamp(-to.max, to.max)
    return (moved.double() * torch.exp2(-nearest_power)).float()


class OperandCast(NamedTuple):
    """How an operand is cast for one GEMM. across: the dimension of input [tokens, in], weight [out, in] or output
    gradient [tokens, out] whose values share a scale; None if the complete tensor does.
    """

    operand: Literal["input", "weight", "output_gradient"]
    to: Definition = E4M3
    across: int | None = None
    power_of_2: bool = False


Casts = dict[TensorName, tuple[OperandCast, ...]]

PER_TENSOR: Casts = {
    "output": (OperandCast("input"), OperandCast("weight")),
    "input_gradient": (OperandCast("output_gradient", E5M2), OperandCast("weight")),
    "weight_gradient": (OperandCast("output_gradient", E5M2), OperandCast("input")),
}
ROWWISE: Casts = {
    "output": (OperandCast("input", E4M3, -1, True), OperandCast("weight", E4M3, -1, True)),
    "input_gradient": (OperandCast("output_gradient", E4M3, -1, True), OperandCast("weight", E4M3, 0, True)),
    "weight_gradient": (OperandCast("output_gradient", E4M3, 0, True), OperandCast("input", E4M3, 0, True)),
}
CASTS: dict[str, Casts] = {
    "torchao-float8:tensorwise": PER_TENSOR,
    "torchao-float8:rowwise": ROWWISE,
    "torchao-float8:rowwise_with_gw_hp": {
        "output": ROWWISE["output"],
        "input_gradient": (OperandCast("output_gradient", E4M3, -1, True), OperandCast("weight", E4M3, None, True)),
    },
    DELAYED: PER_TENSOR,
    "te-fp8:current": PER_TENSOR,
}
"""The casts by mode label, by torchao 0.18 (float8_linear.py, config.py) and Transformer Engine 2.20 (common/recipe). A
mode or tensor that is missing is not cast, or in a way that is not simulated.
"""


class Delayed(NamedTuple):
    """Delayed scaling's two choices, in Transformer Engine's terms (amax_history_len, amax_compute_algo)."""

    history_len: int
    algo: Algo


SCHEMES = (Delayed(1024, "max"), Delayed(16, "max"), Delayed(16, "most_recent"))
"""The schemes, with Transformer Engine's default first."""


def generator(seed: int, *what: object) -> torch.Generator:
    """Return a CPU generator that depends only on seed and purpose, so that every machine gets the same numbers."""
    digest = hashlib.sha256("/".join(map(str, (seed, *what))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def jump(width: int, seed: int) -> Iterator[Tensor]:
    """Yield the values of each step: [ROWS, width] float32 that bfloat16 can also hold without loss."""
    by = generator(seed, "jump")
    for step in range(STEPS):
        size = FACTOR if UP_AT <= step < DOWN_AT else 1.0
        yield (torch.randn(ROWS, width, generator=by) * size).bfloat16().float()


def simulate(values: Sequence[Tensor], scheme: Delayed | None) -> ScalingTrace:
    """Cast the tensor of each step to e4m3 under the scheme. scheme: None for current scaling."""
    amaxes = [float(tensor.abs().amax()) for tensor in values]
    if scheme is None:
        scales = [float(scale_for(tensor, E4M3)) for tensor in values]
    else:
        window = scheme.history_len if scheme.algo == "max" else 1
        known = [max(amaxes[max(0, step - window) : step]) for step in range(1, len(values))]
        scales = [1.0, *(float(np.float32(E4M3.max) / np.float32(amax)) for amax in known)]
    return _trace(values, scheme, "simulated", amaxes, scales)


def read_transformer_engine(values: Sequence[Tensor], scheme: Delayed, device: torch.device) -> ScalingTrace:
    """Run the steps through a te.Linear, and read its amax and scale inside the autocast. Needs a GPU with fp8."""
    from transformer_engine.common.recipe import DelayedScaling

    te = import_te()
    recipe = DelayedScaling(amax_history_len=scheme.history_len, amax_compute_algo=scheme.algo)
    layer = te.Linear(values[0].shape[-1], 16, bias=False, params_dtype=torch.bfloat16, device=device)
    amaxes, scales = [], []
    for tensor in values:
        with torch.autocast(device.type, dtype=torch.bfloat16), te.autocast(enabled=True, recipe=recipe):
            layer(tensor.to(device))
            # Of a linear module's forward tensors (input, weight, output) the input is the first.
            state: Any = layer.fp8_meta["scaling_fwd"]
            scales.append(float(state.scale[0]))
            amaxes.append(float(state.amax_history[0][0]))
    return _trace(values, scheme, "transformer_engine", amaxes, scales)


def examine_jump(width: int, seed: int, device: torch.device, delayed_runs: bool) -> AmaxJump:
    """Simulate every scheme and current scaling; also read each scheme from Transformer Engine if it runs here."""
    values = list(jump(width, seed))
    traces = [simulate(values, scheme) for scheme in (*SCHEMES, None)]
    if delayed_runs:
        traces += [read_transformer_engine(values, scheme, device) for scheme in SCHEMES]
    return AmaxJump(steps=STEPS, up_at=UP_AT, down_at=DOWN_AT, factor=FACTOR, largest=E4M3.max, traces=tuple(traces))


def _trace(
    values: Sequence[Tensor], scheme: Delayed | None, source: Any, amaxes: Sequence[float], scales: Sequence[float]
) -> ScalingTrace:
    made = [scaled_cast(tensor, scale, E4M3) for tensor, scale in zip(values, scales, strict=True)]
    errors = [float((one.values - tensor).norm() / tensor.norm()) for one, tensor in zip(made, values, strict=True)]
    return ScalingTrace(
        scaling="delayed" if scheme else "current",
        algo=scheme and scheme.algo,
        history_len=scheme and scheme.history_len,
        source=source,
        amax=tuple(amaxes),
        scale=tuple(scales),
        saturated=tuple(one.saturated for one in made),
        flushed=tuple(one.flushed for one in made),
        relative_error=tuple(errors),
    )
