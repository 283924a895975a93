"""Block scales, emulated in torch on any machine: MXFP8, MXFP4, NVFP4 and Transformer Engine's blocks of 128.

A single scale for a complete tensor must suit its largest value, so next to an outlier small values become zero. Block
formats give each block of values its own scale:

    fp8          e4m3 with one float32 for the whole tensor (current scaling)
    te-block     e4m3 in blocks of 128, scaled by a float32 that is a power of two (TE's Float8BlockScaling)
    te-block-2d  the same in squares of 128 x 128, for weights
    mxfp8        e4m3 in blocks of 32, scaled by a power of two in e8m0 (Blackwell)
    mxfp4        e2m1 in the same blocks
    nvfp4        e2m1 in blocks of 16, scaled by an e4m3 value, and the whole tensor by a float32 as well
    nvfp4-2d     the same in squares of 16 x 16, for weights

A block consists of consecutive values along the dimension that a GEMM sums over. The scale of a block with the largest
magnitude amax is, with `largest` the largest value of the element's format:

    e8m0       2^ceil(log2(amax / largest)): rounded up, as in Transformer Engine and cuDNN, so that nothing
               saturates. (The MX specification's own example rounds down, and saturates.)
    e4m3       amax / 6 / g, rounded to e4m3, where g = tensor's amax / (448 * 6) is the tensor's float32
    float32    amax / largest

and an element is its value over that scale, rounded to nearest, ties to even, and saturated.

Forward and backward GEMMs sum over different dimensions, so training needs each tensor in blocks along both. A format
with one scale for all values, or one for a square, is transposed without loss. Blocks along a dimension are not: the
transpose must be cast again, and if only the first cast is left, the result is a cast of a cast. So Transformer Engine
makes both copies from the values, which costs twice the memory (`transposed_error` is the error of that second copy,
`requantized_error` that of a cast of a cast). If scales are powers of two, mantissas survive a second cast, and only
values that are too small are lost; NVFP4's scales have mantissas, and lose more.

Sources: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6; Transformer Engine's documentation of MXFP8
and NVFP4; Abecassis et al. 2025, Pretraining Large Language Models with NVFP4, arXiv:2509.25149. Stochastic rounding
and Hadamard transforms, which the NVFP4 recipe adds, are not emulated.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fp8bench.numerics.layers import draw_values
from fp8bench.numerics.scaling import EXPONENT_BIAS, MANTISSA_BITS, generator, grid, round_to, scaled_cast
from fp8bench.numerics.scalings import E2M1, E4M3, E8M0, FLOAT32, POWER_OF_TWO, SCALINGS, Scaling
from fp8bench.schema.blocks import BlockErrors, BlockScales
from fp8bench.schema.numerics import Distribution

ROWS, COLUMNS = 512, 512
"""The size of the matrices that are cast: a multiple of every block."""

DISTRIBUTIONS: tuple[Distribution, ...] = ("normal", "heavy-tailed", "outlier")
SIZES = (16, 32, 64, 128, 256, 512, None)
"""Values that share a scale, in the comparison of sizes; None for all of them."""

SWEPT = ((E4M3, FLOAT32), (E4M3, E8M0), (E2M1, E8M0), (E2M1, E4M3))
"""Elements and scales of the comparison of sizes."""

SWEPT_ON: Distribution = "heavy-tailed"
"""The distribution for which the size of a block matters, because outliers are not confined to a few channels."""


@dataclass(frozen=True)
class BlockCast:
    """A matrix after a cast. values: [rows, columns] float32. scales: float32, the factors by which a block's elements
    are multiplied again: [rows, blocks], [blocks, blocks] for squares, or one. saturated, flushed: see `ScaledCast`.
    """

    values: Tensor
    scales: Tensor
    saturated: float
    flushed: float


def block_cast(values: Tensor, scaling: Scaling) -> BlockCast:
    """Cast values: float32, [rows, columns]. Blocks run along a row. Columns, and for squares also rows, must be a
    multiple of the block.

    Raises ValueError if they are not.
    """
    blocked = _blocked(values, scaling)
    amax = blocked.abs().amax(dim=(-3, -1) if scaling.square else -1, keepdim=True)
    scales = _scales(amax, scaling)
    # A block whose scale is zero, or too small for a reciprocal, has no values left.
    multiplier = torch.where(scales > 0, scales.double().reciprocal(), 0.0).clamp(max=torch.finfo(torch.float32).max)
    made = scaled_cast(blocked, multiplier.float(), grid(scaling.element))
    kept = torch.where(scales > 0, made.values, 0.0)
    flushed = float(((kept == 0) & (blocked != 0)).double().mean())
    return BlockCast(kept.reshape(values.shape), _squeezed(scales, scaling), made.saturated, flushed)


def _blocked(values: Tensor, scaling: Scaling) -> Tensor:
    """Return [rows, blocks, block]; for squares [block rows, block, blocks, block]; for one block [1, 1, all]."""
    rows, columns = values.shape
    if scaling.block is None:
        return values.reshape(1, 1, -1)
    if columns % scaling.block or (scaling.square and rows % scaling.block):
        raise ValueError(f"a matrix of {rows} x {columns} has no blocks of {scaling.block}")
    if scaling.square:
        return values.reshape(rows // scaling.block, scaling.block, -1, scaling.block)
    return values.reshape(rows, -1, scaling.block)


def _squeezed(scales: Tensor, scaling: Scaling) -> Tensor:
    return scales.squeeze(-1).squeeze(-2) if scaling.square else scales.squeeze(-1)


def _scales(amax: Tensor, scaling: Scaling) -> Tensor:
    """Return the factors by which elements are multiplied again, in the scale's format. amax: that of each block."""
    exact = _divided(amax, scaling.largest)
    if scaling.scale in (E8M0, POWER_OF_TWO):
        return power_of_two_above(exact)
    if scaling.scale == E4M3:
        of_scales = grid(E4M3)
        tensor_scale = _divided(exact.amax(), of_scales.largest)
        rounded = round_to(torch.where(tensor_scale > 0, exact / tensor_scale, 0.0), of_scales)
        return rounded.clamp(max=of_scales.largest) * tensor_scale
    return exact


def _divided(values: Tensor, number: float) -> Tensor:
    """Return values / number, correctly rounded on every device: on a GPU, torch multiplies by the reciprocal of a
    Python number, which can be one ulp off, and divides by a tensor of the same device.
    """
    return values / values.new_tensor(number)


def power_of_two_above(values: Tensor) -> Tensor:
    """Return the smallest power of two not less than each value, within e8m0's range. values: float32, >= 0."""
    bits = values.view(torch.int32)
    exponent, mantissa = bits >> MANTISSA_BITS, bits & ((1 << MANTISSA_BITS) - 1)
    # The size of a subnormal float32 is in its mantissa alone: half of its range is 2^-127.
    above = (mantissa != 0) & ~((exponent == 0) & (mantissa <= 1 << (MANTISSA_BITS - 1)))
    biased = (exponent + above.int()).clamp(0, 2 * EXPONENT_BIAS)
    # e8m0's lowest value is a subnormal float32.
    return torch.where(biased == 0, 2.0**-EXPONENT_BIAS, (biased << MANTISSA_BITS).view(torch.float32))


def examine_blocks(seed: int = 0, rows: int = ROWS, columns: int = COLUMNS) -> BlockScales:
    """Examine every named way on every distribution, and every size of block on SWEPT_ON. rows, columns: multiples of
    every block.

    Raises ValueError if they are not.
    """
    drawn = {name: _drawn(name, seed, rows, columns) for name in DISTRIBUTIONS}
    named = [_errors(values, scaling, name) for name, values in drawn.items() for scaling in SCALINGS]
    sizes = [_errors(drawn[SWEPT_ON], scaling, SWEPT_ON) for scaling in _sweep(columns)]
    return BlockScales(rows=rows, columns=columns, seed=seed, errors=(*named, *sizes))


def _sweep(columns: int) -> Iterator[Scaling]:
    """Yield the scalings of each element and scale, except an e4m3 scale of a tensor, which has a float32 scale."""
    for element, scale in SWEPT:
        for size in SIZES:
            if (size is not None or scale != E4M3) and (size or 0) <= columns:
                yield Scaling(element, scale, size)


def _drawn(name: Distribution, seed: int, rows: int, columns: int) -> Tensor:
    """Draw values that bfloat16 can hold, as in the tensors that are cast in training."""
    return draw_values(name, (rows, columns), generator(seed, name, "blocks")).bfloat16().float()


def _errors(values: Tensor, scaling: Scaling, name: Distribution) -> BlockErrors:
    """Return the errors of a way to scale; without transposes if it has no name."""
    first = block_cast(values, scaling)
    second = block_cast(values.t().contiguous(), scaling).values.t() if scaling.name else None
    again = block_cast(first.values.t().contiguous(), scaling).values.t() if scaling.name else None
    return BlockErrors(
        scaling=scaling.name,
        element=scaling.element,
        scale=scaling.scale,
        block=scaling.block,
        square=scaling.square,
        bits_per_value=scaling.bits_per_value,
        input=name,
        relative_error=_off(first.values, values),
        flushed=first.flushed,
        saturated=first.saturated,
        transposed_error=None if second is None else _off(second, values),
        requantized_error=None if again is None else _off(again, values),
        differing=None if second is None else float((first.values != second).double().mean()),
    )


def _off(found: Tensor, values: Tensor) -> float:
    exact = values.double()
    return float((found.double() - exact).norm() / exact.norm())
