"""Number formats: their limits, what a value becomes in one, bit by bit, and blocks that share a scale (MXFP8).
Without torch.

    value = (-1)^sign * 2^(exponent - bias) * 1.mantissa        a normal number
    value = (-1)^sign * 2^(1 - bias)        * 0.mantissa        a subnormal number, if the exponent's bits are all 0

In MXFP8, 32 consecutive values of e4m3 along the dimension that a GEMM sums over share a scale in e8m0:
2^ceil(log2(amax / max)), rounded up as in Transformer Engine and cuDNN, so that nothing saturates.

Sources: OCP OFP8; OCP Microscaling Formats 1.0; Transformer Engine's documentation of MXFP8.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Definition:
    """What a format's bits mean. specials: of inf and nan; with both, they have the highest exponent (IEEE 754), nan
    alone has the pattern of ones. subnormal: whether the lowest exponent has subnormals, and zero.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: tuple[str, ...] = ("inf", "nan")
    sign_bits: int = 1
    subnormal: bool = True

    @property
    def bits(self) -> int:
        """Bits per value, whether or not several are packed into a byte."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def ones(self) -> int:
        """The pattern whose bits, except the sign, are all 1."""
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def largest(self) -> int:
        """The pattern of max. Patterns without a sign are in the order of their values, with inf and nan last."""
        return self.ones - (1 << self.mantissa_bits if "inf" in self.specials else len(self.specials))

    @property
    def max(self) -> float:
        return decode(self, self.largest)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits by name; a format may have no subnormals. min: the lowest value. eps: from 1 to the next value."""
        return {
            **{name: getattr(self, name) for name in ("name", "bits", "sign_bits", "exponent_bits", "mantissa_bits")},
            "max": self.max,
            "min": -self.max if self.sign_bits else decode(self, 0),
            "smallest_normal": decode(self, self.subnormal << self.mantissa_bits),
            "smallest_subnormal": decode(self, 1) if self.subnormal else None,
            "eps": math.ldexp(1.0, -self.mantissa_bits),
            "specials": self.specials,
        }


FLOAT32 = Definition("float32", 8, 23, 127)
E4M3 = Definition("float8_e4m3fn", 4, 3, 7, ("nan",))
E5M2 = Definition("float8_e5m2", 5, 2, 15)
E8M0 = Definition("float8_e8m0fnu", 8, 0, 127, ("nan",), sign_bits=0, subnormal=False)
E2M1 = Definition("float4_e2m1fn_x2", 2, 1, 1, ())
BFLOAT16, FLOAT16 = Definition("bfloat16", 8, 7, 127), Definition("float16", 5, 10, 15)
DEFINITIONS = {one.name: one for one in (FLOAT32, BFLOAT16, FLOAT16, E4M3, E5M2, E8M0, E2M1)}
"""The definitions by torch's names, in the order in which they are shown."""

MXFP8 = "mxfp8"
BLOCK = 32
"""How many values of MXFP8 share a scale."""


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
    unsigned = pattern & definition.ones
    sign = -1.0 if unsigned != pattern else 1.0
    if unsigned > definition.largest:
        return sign * math.inf if "inf" in definition.specials and unsigned == definition.largest + 1 else math.nan
    hidden_bit = 1 << definition.mantissa_bits
    exponent, mantissa = divmod(unsigned, hidden_bit)
    if exponent == 0 and definition.subnormal:
        return sign * math.ldexp(mantissa, 1 - definition.bias - definition.mantissa_bits)
    return sign * math.ldexp(hidden_bit + mantissa, exponent - definition.bias - definition.mantissa_bits)


def encode(definition: Definition, value: float) -> int | None:
    """Return the pattern of the nearest value, ties to even (of e8m0, to the larger). Above max it is inf where the
    format has it, otherwise max. None for inf and nan where the format lacks them, and below 0 where it has no sign.
    """
    if math.isnan(value):
        return definition.ones if "nan" in definition.specials else None
    has_inf = "inf" in definition.specials
    if (math.isinf(value) and not has_inf) or (value < 0 and not definition.sign_bits):
        return None
    most = definition.largest + has_inf
    pattern = most if math.isinf(value) else min(_on_grid(definition, abs(value)), most)
    return pattern + (definition.ones + 1) * (definition.sign_bits and math.copysign(1.0, value) < 0)


def _on_grid(definition: Definition, magnitude: float) -> int:
    """Return the nearest pattern as if exponents had no end: of a value beyond max it is more than `largest`."""
    lowest = definition.subnormal - definition.bias
    # frexp returns mantissas in [0.5, 1), formats have [1, 2).
    exponent = max(math.frexp(magnitude)[1] - 1, lowest) if magnitude else lowest
    # Python's round chooses the even of two. One step more than a binade has is the first step of the next one.
    steps = round(math.ldexp(magnitude, definition.mantissa_bits - exponent))
    return max(0, steps + (exponent - lowest - (not definition.subnormal) << definition.mantissa_bits))


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
    digits = f"{pattern:0{definition.bits}b}"
    mantissa_at = definition.sign_bits + definition.exponent_bits
    return Bits(
        value=value,
        dtype=definition.name,
        becomes=becomes,
        absolute_error=error,
        relative_error=0.0 if exact else error / abs(value) if value else math.inf,
        sign=digits[: definition.sign_bits],
        exponent=digits[definition.sign_bits : mantissa_at],
        mantissa=digits[mantissa_at:],
        scale=scale,
        saturated=math.isfinite(becomes) and _on_grid(definition, abs(scaled)) > definition.largest,
    )


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
