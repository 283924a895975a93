"""fp8's grid by definition, and a scaled cast to it: a reference that owes nothing to the libraries it judges.

A format with m bits of mantissa has 2^m values from each power of two to the next, evenly spaced; below its smallest
normal power the spacing stays as it is there, down to zero. So a value v is rounded by

    exponent = max(floor(log2 |v|), least_exponent)        read from the bits of the float32
    step     = 2^(exponent - m)
    rounded  = step * round(v / step)                      to nearest, ties to even

and nothing else: each of these is exact in float32. What is then beyond the largest value saturates, as the casts of
Transformer Engine and torchao do. e4m3 reaches 448 with 3 bits of mantissa, e5m2 57344 with 2 (OCP 8-bit Floating
Point Specification).

fp8 has too few exponents for a tensor as it comes, so it is multiplied by a scale first and divided by it afterwards:
scale = largest / amax, where amax is the largest magnitude of what shares the scale (a tensor, a row, a block).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fp8bench.numerics.formats import DEFINITIONS, decode

EXPONENT_BIAS = 127
MANTISSA_BITS = 23


@dataclass(frozen=True)
class Grid:
    """A format's values: bits of mantissa, exponent of the smallest normal value, and the largest value."""

    mantissa_bits: int
    least_exponent: int
    largest: float


def _grid(name: str) -> Grid:
    definition = DEFINITIONS[name]
    return Grid(definition.mantissa_bits, 1 - definition.bias, decode(definition, definition.largest))


E4M3 = _grid("float8_e4m3fn")
E5M2 = _grid("float8_e5m2")
BOTH = Grid(E5M2.mantissa_bits, E4M3.least_exponent, E4M3.largest)
"""Values of e4m3 that e5m2 has too: the range of the one, the mantissa of the other."""


@dataclass(frozen=True)
class Cast:
    """What a cast made of a tensor.

    values: as the original, float32, divided by the scale again. saturated: share of the values that would round to
    more than the largest. flushed: share of the values that were not zero and became zero.
    """

    values: Tensor
    saturated: float
    flushed: float


def cast(values: Tensor, scale: Tensor | float, grid: Grid) -> Cast:
    """values times scale, rounded to the grid, saturated, and divided by the scale. scale: broadcast, float32."""
    scaled = values.float() * scale
    rounded = round_to(scaled, grid)
    flushed = (rounded == 0) & (scaled != 0)
    saturated = rounded.abs() > grid.largest
    return Cast(rounded.clamp(-grid.largest, grid.largest) / scale, _share(saturated), _share(flushed))


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
    # What has no value but zero may have any scale.
    scale = torch.where(amax > 0, grid.largest / amax.double(), 1.0).float()
    if not power_of_2:
        return scale
    return (scale.view(torch.int32) >> MANTISSA_BITS << MANTISSA_BITS).view(torch.float32)


def representable(values: Tensor, grid: Grid) -> Tensor:
    """The values moved to the grid, times a power of two: near what they were, and exact in fp8.

    The largest magnitude becomes `grid.largest` times that power of two. So the scale of the whole tensor is a power of
    two, under which every value is on the grid; and so is it under any larger power of two, as the scale of a row or a
    block is: it moves exponents up, and the largest of them not beyond the format.
    """
    scale = scale_for(values, grid)
    nearest_power = torch.round(torch.log2(scale.double()))
    moved = round_to(values.float() * scale, grid).clamp(-grid.largest, grid.largest)
    return (moved.double() * torch.exp2(-nearest_power)).float()


def _share(which: Tensor) -> float:
    return float(which.double().mean())
