"""Number formats by definition: what their bits mean, and so what they can hold. No torch, no measurement.

A floating-point number is a sign, an exponent and a mantissa. The exponent's bits, read as an integer less a bias, say
which power of two the number lies above; the mantissa's bits say how far towards the next one it is:

    value = (-1)^sign * 2^(exponent - bias) * 1.mantissa        a normal number
    value = (-1)^sign * 2^(1 - bias)        * 0.mantissa        a subnormal one, where the exponent's bits are all 0

Exponent bits buy range, mantissa bits precision, and 8 bits have little of either. So fp8 comes as a pair: e4m3 (4 bits
of exponent, 3 of mantissa) for weights and activations, which need the precision, and e5m2 for gradients, which need
the range (Micikevicius et al. 2022, FP8 formats for deep learning, arXiv:2209.05433; the OCP 8-bit Floating Point
Specification, OFP8).

IEEE 754 gives up the whole highest exponent to inf and nan; e5m2 does so too, as float16 with 8 fewer bits of mantissa.
Of e4m3's 16 exponents that would be one too many: its max would be 240. e4m3fn (f: finite, n: nan only where all bits
are 1) has no infinity and one nan a sign, and reaches 448. What is too large for it can therefore become only nan or
448, and which one is not the format's matter but the cast's: see `casting`.

Two formats serve blocks: in the OCP Microscaling Formats (MX) Specification, 32 values share a scale. e8m0fnu is that
scale, the exponent of a float32 and nothing else: no sign (u), no mantissa, and no zero; it holds powers of two and one
nan. e2m1fn is a value of an MXFP4 block: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, with no pattern to spare for
inf or nan. torch stores two in a byte, and calls that type float4_e2m1fn_x2.

fnuz (uz: unsigned zero) is another pair of fp8, that of Graphcore and of AMD's MI300: the bias is larger by one, zero
has no sign, and nan is in the place of the negative zero.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.formats import Reach

SMALL_BITS = 8
"""Formats of at most so many bits are told value by value."""


@dataclass(frozen=True)
class Definition:
    """What the bits of a format mean.

    specials: where inf and nan are. `ieee`: the highest exponent, inf where the mantissa is 0; `nan_at_ones`: no inf,
    nan where all bits but the sign are 1; `nan_at_minus_zero`: no inf, nan in its place; `none`: neither.
    subnormal: whether the lowest exponent is that of zero and the subnormals, or one like the others.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "nan_at_ones", "nan_at_minus_zero", "none"]
    sign_bits: int = 1
    subnormal: bool = True

    @property
    def bits(self) -> int:
        """Bits a value, be several packed into a byte or not."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def ones(self) -> int:
        """The pattern whose bits are all 1, but for the sign."""
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def largest(self) -> int:
        """The pattern of max: patterns without a sign are in the order of their values, inf and nan last."""
        specials = {"ieee": 1 << self.mantissa_bits, "nan_at_ones": 1}
        return self.ones - specials.get(self.specials, 0)


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition("float32", 8, 23, 127, "ieee"),
        Definition("bfloat16", 8, 7, 127, "ieee"),
        Definition("float16", 5, 10, 15, "ieee"),
        Definition("float8_e4m3fn", 4, 3, 7, "nan_at_ones"),
        Definition("float8_e5m2", 5, 2, 15, "ieee"),
        Definition("float8_e4m3fnuz", 4, 3, 8, "nan_at_minus_zero"),
        Definition("float8_e5m2fnuz", 5, 2, 16, "nan_at_minus_zero"),
        Definition("float8_e8m0fnu", 8, 0, 127, "nan_at_ones", sign_bits=0, subnormal=False),
        Definition("float4_e2m1fn_x2", 2, 1, 1, "none"),
    )
}
"""By torch's names, in the order in which they are told."""

RARE = ("float8_e4m3fnuz", "float8_e5m2fnuz")
"""Formats of no GPU that is measured here; told only when asked for."""


def decode(definition: Definition, pattern: int) -> float:
    """The value of a bit pattern, exactly: float64 holds every value of every format here.

    Raises ValueError for a pattern of more bits than the format has.
    """
    if not 0 <= pattern < 1 << definition.bits:
        raise ValueError(f"{definition.name} has {definition.bits} bits, and {pattern:#x} is no pattern of these")
    unsigned = pattern & definition.ones
    sign = -1.0 if unsigned != pattern else 1.0
    if definition.specials == "nan_at_minus_zero" and sign < 0 and unsigned == 0:
        return math.nan
    if unsigned > definition.largest:
        return sign * math.inf if definition.specials == "ieee" and unsigned == definition.largest + 1 else math.nan
    hidden_bit = 1 << definition.mantissa_bits
    exponent, mantissa = divmod(unsigned, hidden_bit)
    if exponent == 0 and definition.subnormal:
        return sign * math.ldexp(mantissa, 1 - definition.bias - definition.mantissa_bits)
    return sign * math.ldexp(hidden_bit + mantissa, exponent - definition.bias - definition.mantissa_bits)


def positive_values(definition: Definition) -> Iterator[float]:
    """Every finite value above zero, ascending. There are as many as patterns: not for wide formats."""
    return (decode(definition, pattern) for pattern in range(definition.subnormal, definition.largest + 1))


def reach(definition: Definition) -> Reach:
    """The format's limits, as `torch.finfo` has them where it knows the format, and its smallest subnormal."""
    one = definition.bias << definition.mantissa_bits
    largest = decode(definition, definition.largest)
    first_normal = definition.subnormal << definition.mantissa_bits
    return Reach(
        name=definition.name,
        bits=definition.bits,
        sign_bits=definition.sign_bits,
        exponent_bits=definition.exponent_bits,
        mantissa_bits=definition.mantissa_bits,
        max=largest,
        min=-largest if definition.sign_bits else decode(definition, 0),
        smallest_normal=decode(definition, first_normal),
        smallest_subnormal=decode(definition, 1) if definition.subnormal else None,
        eps=decode(definition, one + 1) - decode(definition, one),
        positive=tuple(positive_values(definition)) if definition.bits <= SMALL_BITS else None,
    )


def nearest(definition: Definition, value: float) -> float | None:
    """The value's nearest in the format; of two, the one whose last bit is 0. Above max it saturates, as the MX
    specification would have it for the elements of a block (section 6.3). None for inf and nan, on which it is silent.

    Raises ValueError for a format without sign or mantissa.
    """
    if not definition.sign_bits or not definition.mantissa_bits:
        raise ValueError(f"{definition.name} has no sign or no mantissa to round")
    if not math.isfinite(value):
        return None
    lowest = 1 - definition.bias
    # frexp has mantissas in [0.5, 1), formats in [1, 2).
    exponent = max(math.frexp(value)[1] - 1, lowest) if value else lowest
    step = math.ldexp(1.0, exponent - definition.mantissa_bits)
    largest = decode(definition, definition.largest)
    # Python's round takes the even of two, and a value's last bit is 0 where its count of steps is even.
    return math.copysign(min(abs(round(value / step) * step), largest), value)
