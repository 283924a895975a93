"""Block formats: each block of consecutive values along the dimension that a GEMM sums over shares a scale. Value by
value in Python, without torch. amax is a block's largest magnitude, `largest` that of the elements' format:

    e8m0    2^ceil(log2(amax / largest)): rounded up, as in Transformer Engine and cuDNN, so that nothing saturates
    e4m3    amax / largest / g, rounded to e4m3, where g = tensor's amax / largest / 448 is the whole tensor's float32

Sources: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6; Transformer Engine's documentation of MXFP8
and NVFP4. Stochastic rounding and Hadamard transforms, which the NVFP4 recipe adds, are left out.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fp8bench.numerics.definitions import DEFINITIONS, Bits, bits, decode, encode

E4M3, E2M1, E8M0 = "float8_e4m3fn", "float4_e2m1fn_x2", "float8_e8m0fnu"


class BlockFormat(NamedTuple):
    """A format. element, scale: names of DEFINITIONS. block: values that share a scale."""

    name: str
    element: str
    scale: str
    block: int

    @property
    def bits(self) -> float:
        """Bits per value, with its share of the scale. A tensor's one float32 counts as nothing."""
        return DEFINITIONS[self.element].bits + DEFINITIONS[self.scale].bits / self.block


BLOCK_FORMATS = {
    one.name: one
    for one in (
        BlockFormat("mxfp8", E4M3, E8M0, 32),
        BlockFormat("mxfp4", E2M1, E8M0, 32),
        BlockFormat("nvfp4", E2M1, E4M3, 16),
    )
}


def in_blocks(of: BlockFormat, values: Sequence[float]) -> list[Bits]:
    """Return what each value becomes. values: one row of a tensor, which is cut into blocks from its start."""
    blocks = [values[start : start + of.block] for start in range(0, len(values), of.block)]
    scales = [_scale(of, _amax(block), _amax(values)) for block in blocks]
    return [
        bits(DEFINITIONS[of.element], value, scale)._replace(dtype=of.name)
        for block, scale in zip(blocks, scales, strict=True)
        for value in block
    ]


def _amax(values: Sequence[float]) -> float:
    """Return the largest finite magnitude: inf and nan are values of their own, whatever the scale."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def _scale(of: BlockFormat, amax: float, tensor_amax: float) -> float:
    """Return the scale of a block; 0 for one whose scale is too small, in which no value is left."""
    exact = amax / DEFINITIONS[of.element].max
    if of.scale == E8M0:
        mantissa, exponent = math.frexp(exact)
        return max(math.ldexp(1.0, exponent - (mantissa == 0.5)), 2.0**-127) if exact else 2.0**-127
    shared = tensor_amax / DEFINITIONS[of.element].max / DEFINITIONS[of.scale].max
    return decode(DEFINITIONS[of.scale], encode(DEFINITIONS[of.scale], exact / shared) or 0) * shared if shared else 0.0
