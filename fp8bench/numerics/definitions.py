"""Number formats: their limits, what a value becomes in one, bit by bit, and blocks that share a scale (MXFP8).
Without torch.

    value = (-1)^sign * 2^(exponent - bias) * 1.mantissa        a normal number; bias: 2^(exponent bits - 1) - 1
    value = (-1)^sign * 2^(1 - bias)        * 0.mantissa        a subnormal number, if the exponent's bits are all 0

In MXFP8, 32 consecutive values of e4m3 along the dimension that a GEMM sums over share a scale in e8m0:
2^ceil(log2(amax / max)), rounded up as in Transformer Engine and cuDNN, so that nothing saturates.

Sources: OCP OFP8; OCP Microscaling Formats 1.0; Transformer Engine's documentation of MXFP8.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Definition(NamedTuple):
    """What a format's bits mean. specials: of inf and nan; with both, they have the highest exponent (IEEE 754), nan
    alone has the pattern of ones. Without a mantissa (e8m0), the lowest exponent has no subnormals and no zero.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: tuple[str, ...] = ("inf", "nan")
    sign_bits: int = 1

    @property
    def bits(self) -> int:
        """Bits per value, whether or not several are packed into a byte."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign(self) -> int:
        """The sign's bit. The patterns below it are in the order of their values, with inf and nan last."""
        return 1 << self.exponent_bits + self.mantissa_bits

    @property
    def largest(self) -> int:
        """The pattern of max."""
        return self.sign - 1 - (1 << self.mantissa_bits if "inf" in self.specials else len(self.specials))

    @property
    def max(self) -> float:
        return decode(self, self.largest)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits by name. min: the lowest value. eps: from 1 to the next value."""
        names = ("name", "bits", "sign_bits", "exponent_bits", "mantissa_bits", "max")
        return {
            **{name: getattr(self, name) for name in names},
            "min": -self.max if self.sign_bits else decode(self, 0),
            "smallest_normal": decode(self, min(1, self.mantissa_bits) << self.mantissa_bits),
            "smallest_subnormal": decode(self, 1) if self.mantissa_bits else None,
            "eps": math.ldexp(1.0, -self.mantissa_bits),
            "specials": self.specials,
        }


FLOAT32, BFLOAT16, FLOAT16 = Definition("float32", 8, 23), Definition("bfloat16", 8, 7), Definition("float16", 5, 10)
E4M3, E5M2 = Definition("float8_e4m3fn", 4, 3, ("nan",)), Definition("float8_e5m2", 5, 2)
E8M0, E2M1 = Definition("float8_e8m0fnu", 8, 0, ("nan",), sign_bits=0), Definition("float4_e2m1fn_x2", 2, 1, ())
DEFINITIONS = {one.name: one for one in (FLOAT32, BFLOAT16, FLOAT16, E4M3, E5M2, E8M0, E2M1)}
"""By torch's names, in the order in which they are shown."""

MXFP8, BLOCK = "mxfp8", 32
"""The name of scaling by blocks, and how many values share a scale."""


class Bits(NamedTuple):
    """What a value becomes in a format; None if it has no bits for it. sign, exponent, mantissa: digits, empty where
    the format has none. scale: by which its block is divided first. saturated: whether it was beyond max.
    """

    value: float
    dtype: str
    becomes: float | None = None
    absolute_error: float | None = None
    relative_error: float | None = None
    sign: str = ""
    exponent: str = ""
    mantissa: str = ""
    scale: float | None = None
    saturated: bool = False


def decode(definition: Definition, pattern: int) -> float:
    """Return the value of a bit pattern, exactly in float64. Raises ValueError for a pattern of too many bits."""
    if not 0 <= pattern < 1 << definition.bits:
        raise ValueError(f"{definition.name} has {definition.bits} bits, and {pattern:#x} matches none of these")
    unsigned = pattern % definition.sign
    sign = 1.0 if unsigned == pattern else -1.0
    if unsigned > definition.largest:
        return sign * math.inf if "inf" in definition.specials and unsigned == definition.largest + 1 else math.nan
    exponent, mantissa = divmod(unsigned, 1 << definition.mantissa_bits)
    if exponent or not definition.mantissa_bits:
        mantissa += 1 << definition.mantissa_bits
    lowest = min(1, definition.mantissa_bits)
    return sign * math.ldexp(mantissa, max(exponent, lowest) - definition.bias - definition.mantissa_bits)


def encode(definition: Definition, value: float) -> int | None:
    """Return the pattern of the nearest value, ties to even (of e8m0, to the larger). Above max it is inf where the
    format has it, otherwise max. None for inf and nan where the format lacks them, and below 0 where it has no sign.
    """
    if math.isnan(value):
        return definition.sign - 1 if "nan" in definition.specials else None
    has_inf = "inf" in definition.specials
    if (math.isinf(value) and not has_inf) or (value < 0 and not definition.sign_bits):
        return None
    most = definition.largest + has_inf
    pattern = most if math.isinf(value) else min(_on_grid(definition, abs(value)), most)
    return pattern + definition.sign * (definition.sign_bits and math.copysign(1.0, value) < 0)


def _on_grid(definition: Definition, magnitude: float) -> int:
    """Return the nearest pattern as if exponents had no end: of a value beyond max it is more than `largest`."""
    lowest = min(1, definition.mantissa_bits)
    # frexp returns mantissas in [0.5, 1), formats have [1, 2).
    exponent = max(math.frexp(magnitude)[1] - 1 + definition.bias, lowest) if magnitude else lowest
    # Python's round chooses the even of two. One step more than a binade has is the first step of the next one.
    steps = round(math.ldexp(magnitude, definition.mantissa_bits - exponent + definition.bias))
    return max(0, steps + (exponent - 1 << definition.mantissa_bits))


def bits(definition: Definition, value: float, scale: float | None = None) -> Bits:
    """Return what the value becomes. It is a float32 first, as in a tensor to be cast. scale: of its block, above 0."""
    factor = 1.0 if scale is None else scale
    scaled = decode(FLOAT32, encode(FLOAT32, value) or 0) / factor
    pattern = encode(definition, scaled)
    if pattern is None:
        return Bits(value, definition.name, scale=scale)
    becomes = decode(definition, pattern) * factor
    exact = becomes == value or (math.isnan(becomes) and math.isnan(value))
    error = 0.0 if exact else abs(becomes - value)
    relative = 0.0 if exact else error / abs(value) if value else math.inf
    digits = f"{pattern:0{definition.bits}b}"
    at = definition.sign_bits + definition.exponent_bits
    parts = digits[: definition.sign_bits], digits[definition.sign_bits : at], digits[at:]
    saturated = math.isfinite(becomes) and _on_grid(definition, abs(scaled)) > definition.largest
    return Bits(value, definition.name, becomes, error, relative, *parts, scale, saturated)


def in_blocks(values: Sequence[float]) -> list[Bits]:
    """Return what each value becomes in MXFP8. values: one row of a tensor, which is cut into blocks from its start.
    inf and nan are values of their own, whatever the scale.
    """
    found: list[Bits] = []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        exact = max((abs(value) for value in block if math.isfinite(value)), default=0.0) / E4M3.max
        mantissa, exponent = math.frexp(exact)
        scale = max(math.ldexp(1.0, exponent - (mantissa == 0.5)), decode(E8M0, 0)) if exact else decode(E8M0, 0)
        found += [bits(E4M3, value, scale)._replace(dtype=MXFP8) for value in block]
    return found
