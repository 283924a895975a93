"""Number formats: what their bits mean, which values they can hold, and which bits a value has. This module does not
use torch; `formats` examines torch's casts.

A floating-point number is a sign, an exponent and a mantissa. The exponent's bits, read as an integer minus a bias,
give the power of two below the number; the mantissa's bits give how far the number is towards the next one:

    value = (-1)^sign * 2^(exponent - bias) * 1.mantissa        a normal number
    value = (-1)^sign * 2^(1 - bias)        * 0.mantissa        a subnormal number, if the exponent's bits are all 0

Exponent bits determine range, mantissa bits precision, and 8 bits provide little of either. So fp8 is a pair of
formats: e4m3 (4 bits of exponent, 3 of mantissa) for weights and activations, which need precision, and e5m2 for
gradients, which need range (Micikevicius et al. 2022, FP8 formats for deep learning, arXiv:2209.05433; the OCP 8-bit
Floating Point Specification, OFP8).

IEEE 754 reserves the complete highest exponent for inf and nan; so does e5m2, which is float16 with 8 fewer bits of
mantissa. e4m3's max would then be 240. e4m3fn (f: finite, n: nan only if all bits are 1) has no infinity and one nan
per sign, and reaches 448. So a larger value can become only nan or 448, and the cast decides which.

Two formats serve blocks: in the OCP Microscaling Formats (MX) Specification, 32 values share a scale. e8m0fnu is that
scale, only the exponent of a float32: no sign (u), no mantissa, and no zero; it has powers of two and one nan. e2m1fn
is a value of an MXFP4 block: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, without inf or nan; torch's
float4_e2m1fn_x2 stores two in a byte. fnuz (uz: unsigned zero) is another pair of fp8, by Graphcore and in AMD's MI300:
the bias is larger by one, zero has no sign, and nan is in the place of the negative zero.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.formats import Bits, Format, FormatReport, Reach

SMALL_BITS = 8
"""The largest number of bits of formats whose values are listed one by one."""


@dataclass(frozen=True)
class Definition:
    """What the bits of a format mean.

    specials: where inf and nan are. `ieee`: the highest exponent, inf if the mantissa is 0; `nan_at_ones`: no inf, nan
    if all bits but the sign are 1; `nan_at_minus_zero`: no inf, nan in the place of minus zero; `none`: neither.
    subnormal: whether the lowest exponent is for zero and subnormals, or like the others.
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
        """Bits per value, whether or not several are packed into a byte."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def ones(self) -> int:
        """The pattern whose bits, except the sign, are all 1."""
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def largest(self) -> int:
        """The pattern of max. Patterns without a sign are in the order of their values, with inf and nan last."""
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
"""The definitions by torch's names, in the order in which they are shown."""

RARE = ("float8_e4m3fnuz", "float8_e5m2fnuz")
"""Formats that no GPU measured here has; shown only with `--all` or by name."""


def decode(definition: Definition, pattern: int) -> float:
    """Return the value of a bit pattern, exactly: float64 holds every value of every format here.

    Raises ValueError for a pattern of more bits than the format has.
    """
    if not 0 <= pattern < 1 << definition.bits:
        raise ValueError(f"{definition.name} has {definition.bits} bits, and {pattern:#x} matches none of these")
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
    """Yield every finite value above zero, ascending. Not for wide formats, which have too many."""
    return (decode(definition, pattern) for pattern in range(definition.subnormal, definition.largest + 1))


def reach(definition: Definition) -> Reach:
    """Return the format's limits, as in `torch.finfo` if it knows the format, and its smallest subnormal."""
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
        specials={"ieee": ("inf", "nan"), "none": ()}.get(definition.specials, ("nan",)),
        positive=tuple(positive_values(definition)) if definition.bits <= SMALL_BITS else None,
    )


def nearest(definition: Definition, value: float) -> float | None:
    """Return the nearest value of the format; of two, the one whose last bit is 0 (for e8m0, which has no mantissa, the
    larger). Above max it saturates, as the MX specification requires for the elements of a block (section 6.3). None
    for inf and nan, which the specification leaves open, and for a negative value in a format without sign.
    """
    if not math.isfinite(value) or (value < 0 and not definition.sign_bits):
        return None
    least, largest = decode(definition, 0), decode(definition, definition.largest)
    magnitude = min(max(_on_grid(definition, value), least), largest)
    signed = definition.sign_bits and (magnitude or definition.specials != "nan_at_minus_zero")
    return math.copysign(magnitude, value) if signed else magnitude


def _on_grid(definition: Definition, value: float) -> float:
    """Return the magnitude rounded to the format's spacing. A value beyond max remains beyond it."""
    lowest = definition.subnormal - definition.bias
    # frexp returns mantissas in [0.5, 1), formats have [1, 2).
    exponent = max(math.frexp(value)[1] - 1, lowest) if value else lowest
    step = math.ldexp(1.0, exponent - definition.mantissa_bits)
    # Python's round chooses the even of two, and a value's last bit is 0 if its number of steps is even.
    return abs(round(value / step) * step)


def encode(definition: Definition, value: float) -> int | None:
    """Return the pattern of a value that the format holds, so that `decode` returns the value; for nan, the quiet one
    without sign. None for inf or nan if the format lacks it. A zero without sign has one pattern.

    Raises ValueError for a finite value that the format does not hold.
    """
    if math.isnan(value):
        return _nan(definition)
    if math.isinf(value):
        unsigned = definition.largest + 1 if definition.specials == "ieee" else None
    else:
        unsigned = _pattern_of(definition, abs(value))
    negative = math.copysign(1.0, value) < 0 and definition.sign_bits == 1
    if unsigned is None or not negative or (unsigned == 0 and definition.specials == "nan_at_minus_zero"):
        return unsigned
    return unsigned + definition.ones + 1


def _nan(definition: Definition) -> int | None:
    quiet = definition.largest + 1 + (1 << max(0, definition.mantissa_bits - 1))
    patterns = {"ieee": quiet, "nan_at_ones": definition.ones, "nan_at_minus_zero": definition.ones + 1}
    return patterns.get(definition.specials)


def _pattern_of(definition: Definition, magnitude: float) -> int:
    lowest = definition.subnormal - definition.bias
    exponent = max(math.frexp(magnitude)[1] - 1, lowest) if magnitude else lowest
    steps = magnitude / math.ldexp(1.0, exponent - definition.mantissa_bits)
    hidden_bit = 1 << definition.mantissa_bits
    # A subnormal has as many steps as its mantissa says; a normal value also has the hidden bit.
    pattern = int(steps) + (exponent - lowest) * hidden_bit - (0 if definition.subnormal else hidden_bit)
    if not 0 <= pattern <= definition.largest or decode(definition, pattern) != magnitude:
        raise ValueError(f"{definition.name} has no {magnitude}")
    return pattern


def bits(definition: Definition, value: float) -> Bits:
    """Return the bits of what the value becomes in the format, by IEEE 754's rounding to nearest, ties to even. A value
    that is too large becomes inf if the format has it, otherwise max. It is a float32 first, as in a tensor to be cast.
    """
    as_float32 = _becomes(DEFINITIONS["float32"], value)
    became = _becomes(definition, math.nan if as_float32 is None else as_float32)
    pattern = None if became is None else encode(definition, became)
    if pattern is None or became is None or as_float32 is None:
        return Bits(value, definition.name, None)
    digits = f"{pattern:0{definition.bits}b}"
    exponent_at, mantissa_at = definition.sign_bits, definition.sign_bits + definition.exponent_bits
    significand, power = _read(definition, pattern) if math.isfinite(became) else (None, None)
    return Bits(
        value=value,
        dtype=definition.name,
        becomes=became,
        sign=digits[:exponent_at],
        exponent=digits[exponent_at:mantissa_at],
        mantissa=digits[mantissa_at:],
        significand=significand,
        power=power,
        saturated=math.isfinite(as_float32) and _on_grid(definition, as_float32) > abs(became),
    )


def _becomes(definition: Definition, value: float) -> float | None:
    """Return what the value becomes; None if the format can represent neither the value nor a substitute."""
    if not math.isfinite(value):
        return value if encode(definition, value) is not None else None
    if definition.specials == "ieee" and _on_grid(definition, value) > decode(definition, definition.largest):
        return math.copysign(math.inf, value)
    return nearest(definition, value)


def _read(definition: Definition, pattern: int) -> tuple[float, int]:
    """Return significand and power of two of a finite pattern: its magnitude is significand * 2^power."""
    hidden_bit = 1 << definition.mantissa_bits
    exponent, mantissa = divmod(pattern & definition.ones, hidden_bit)
    if exponent == 0 and definition.subnormal:
        return mantissa / hidden_bit, 1 - definition.bias
    return 1 + mantissa / hidden_bit, exponent - definition.bias


def named(*, every: bool) -> list[str]:
    """Return the names of the formats in the order of DEFINITIONS. every: whether to include the rare ones."""
    return [name for name in DEFINITIONS if every or name not in RARE]


def reaches(names: Sequence[str], values: Sequence[float] = ()) -> FormatReport:
    """Return what each format holds, and the bits of each value in each format. names: names in DEFINITIONS."""
    return FormatReport(
        formats=tuple(Format(reach(DEFINITIONS[name]), None) for name in names),
        bits=tuple(bits(DEFINITIONS[name], value) for value in values for name in names),
    )
