"""Delayed scaling, step by step: what becomes of it when values grow, or shrink, from one step to the next.

Current scaling looks at a tensor before it casts it, and so reads it twice. Delayed scaling casts with a scale that
earlier steps left, and notes the largest magnitude (amax) on the way. After the step:

    window = the amaxes of the last `history_len` steps, this one among them
    amax   = max(window), or this step's alone (algo `most_recent`)
    scale  = largest / 2^margin / amax, in float32            for the next step; the first step's is 1

A step whose amax is 0 leaves window and scale as they are. This is what Transformer Engine does: the casts of a step
write their amaxes into row 0 of `amax_history`; leaving the outermost autocast (for gradients, the end of the first
module's backward pass) sets the scale from the whole table, rolls it by one row and zeroes row 0
(reduce_and_update_fp8_tensors in pytorch/quantization.py of 2.20, which calls kernel_bulk in
common/recipe/delayed_scaling.cu).

What follows: the step at which values jump up is cast with a scale that is too large, and saturates; it is the only
one. After a fall the scale stays too small until the large amax has left the window, `history_len` steps later. That
costs little, since fp8 has exponents of its own, until values fall below its smallest.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fp8bench.modes.transformer_engine import import_te
from fp8bench.numerics.inputs import generator
from fp8bench.numerics.quantiser import E4M3, Grid, cast, scale_for
from fp8bench.schema.numerics import Algo, AmaxJump, ScalingTrace

STEPS = 100
UP_AT = 20
DOWN_AT = 60
FACTOR = 100.0
ROWS = 128
"""Values a step: so many rows as wide as the layer."""

INPUT = 0
"""The input's place among a linear module's forward tensors (input, weight, output) in fp8_meta."""


@dataclass(frozen=True)
class Delayed:
    """Delayed scaling's two choices, in Transformer Engine's words (amax_history_len, amax_compute_algo)."""

    history_len: int
    algo: Algo


SCHEMES = (Delayed(1024, "max"), Delayed(16, "max"), Delayed(16, "most_recent"))
"""Transformer Engine's default first."""


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


def simulate(values: Sequence[Tensor], scheme: Delayed | None, grid: Grid = E4M3) -> ScalingTrace:
    """Cast the tensor of each step under the scheme; None is current scaling."""
    amaxes: list[float] = []
    scales: list[float] = []
    scale = 1.0
    for tensor in values:
        if scheme is None:
            scale = float(scale_for(tensor, grid))
        scales.append(scale)
        amaxes.append(float(tensor.abs().amax()))
        if scheme is not None:
            scale = next_scale(amaxes, scheme, scale, grid.largest)
    return _trace(values, scheme, "simulated", amaxes, scales, grid)


def read_transformer_engine(values: Sequence[Tensor], scheme: Delayed, device: torch.device) -> ScalingTrace:
    """The same steps through a te.Linear: its input's amax and scale, as its fp8_meta has them. Needs a GPU with fp8.

    Both are read inside the autocast: the cast of this step has written its amax, and the scale is still the one that
    it used.
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
    return _trace(values, scheme, "transformer_engine", amaxes, scales, E4M3)


def examine_jump(width: int, seed: int, device: torch.device, delayed_runs: bool) -> AmaxJump:
    """Every scheme simulated, current scaling beside them; and read off Transformer Engine where it runs."""
    values = list(jump(width, seed))
    traces = [simulate(values, scheme) for scheme in (*SCHEMES, None)]
    if delayed_runs:
        traces += [read_transformer_engine(values, scheme, device) for scheme in SCHEMES]
    return AmaxJump(
        steps=STEPS, up_at=UP_AT, down_at=DOWN_AT, factor=FACTOR, largest=E4M3.largest, traces=tuple(traces)
    )


def _trace(
    values: Sequence[Tensor],
    scheme: Delayed | None,
    source: Any,
    amaxes: Sequence[float],
    scales: Sequence[float],
    grid: Grid,
) -> ScalingTrace:
    """What our own cast makes of the values under these scales, wherever the scales are from."""
    made = [cast(tensor, scale, grid) for tensor, scale in zip(values, scales, strict=True)]
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
