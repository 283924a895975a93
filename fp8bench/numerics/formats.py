"""Number formats: what their bits mean, so what they can hold, and what this torch's casts to them do.

A floating-point number is a sign, an exponent and a mantissa. The exponent's bits, read as an integer less a bias, give
the power of two below the number; the mantissa's bits, how far it is towards the next one:

    value = (-1)^sign * 2^(exponent - bias) * 1.mantissa        a normal number
    value = (-1)^sign * 2^(1 - bias)        * 0.mantissa        a subnormal one, where the exponent's bits are all 0

Exponent bits buy range, mantissa bits precision, and 8 bits have little of either. So fp8 comes as a pair: e4m3 (4 bits
of exponent, 3 of mantissa) for weights and activations, which need the precision, and e5m2 for gradients, which need
the range (Micikevicius et al. 2022, FP8 formats for deep learning, arXiv:2209.05433; the OCP 8-bit Floating Point
Specification, OFP8).

IEEE 754 reserves the whole highest exponent for inf and nan; so does e5m2, which is float16 with 8 fewer bits of
mantissa. e4m3's max would then be 240. e4m3fn (f: finite, n: nan only where all bits are 1) has no infinity and one nan
a sign, and reaches 448. A larger value can therefore become only nan or 448; the cast decides which.

Two formats serve blocks: in the OCP Microscaling Formats (MX) Specification, 32 values share a scale. e8m0fnu is that
scale, the exponent of a float32 alone: no sign (u), no mantissa, and no zero; powers of two and one nan. e2m1fn is a
value of an MXFP4 block: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, without inf or nan; torch's float4_e2m1fn_x2
stores two in a byte. fnuz (uz: unsigned zero) is another pair of fp8, of Graphcore and AMD's MI300: the bias is larger
by one, zero has no sign, and nan is in the place of the negative zero.

A format leaves to the cast how it rounds between two values, and what a value above max, or inf, becomes. Both are
found by casting, and not taken from a document. Most casts round to nearest, ties to even, as IEEE 754 has it; torch's
cast to float8_e8m0fnu takes the larger of two. torch's eager cast to float8_e4m3fn gave nan above max before 2.12, and
saturates since (https://github.com/pytorch/pytorch/pull/178817).

A value becomes a float32 first, as in a tensor that a model would cast. Casts are the CPU's, which every machine has; a
GPU's kernels that scale and cast in one may treat overflow otherwise. torch has no cast to float4_e2m1fn_x2: its values
are rounded by the definition, and say so.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from fp8bench.schema.formats import CastBehaviour, Format, FormatReport, Overflow, Reach, Rounded, Rounding

SMALL_BITS = 8
"""Values are listed one by one for formats of at most so many bits."""

ROUNDINGS: dict[tuple[int, ...], Rounding] = {
    (0, 0, 1, 1, 2, 2): "to nearest, ties to even",
    (0, 1, 1, 1, 2, 2): "to nearest, ties away from zero",
    (0, 0, 1, 1, 1, 2): "to nearest, ties toward zero",
}
"""By which of its three neighbours each value of `_between` becomes."""


@dataclass(frozen=True)
class Definition:
    """What the bits of a format mean.

    specials: where inf and nan are. `ieee`: the highest exponent, inf where the mantissa is 0; `nan_at_ones`: no inf,
    nan where all bits but the sign are 1; `nan_at_minus_zero`: no inf, nan in its place; `none`: neither.
    subnormal: whether the lowest exponent is of zero and subnormals, or like the others.
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
"""By torch's names, in the order in which they are shown."""

RARE = ("float8_e4m3fnuz", "float8_e5m2fnuz")
"""Formats of no GPU that is measured here; shown only with `--all` or by name."""


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
    """Every finite value above zero, ascending. Not for wide formats, which have too many."""
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
    specification has it for the elements of a block (section 6.3). None for inf and nan, which that leaves open.

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


def known_names(*, every: bool) -> list[str]:
    """The formats that this torch has, in the order of DEFINITIONS. every: the rare ones too."""
    return [name for name in DEFINITIONS if (every or name not in RARE) and hasattr(torch, name)]


def examine(names: Sequence[str], values: Sequence[float]) -> FormatReport:
    """What each format holds, what a cast to it does, and what each value becomes. names: of `known_names`."""
    rounded = [_round(DEFINITIONS[name], values) for name in names]
    return FormatReport(
        torch=str(torch.__version__),
        device="cpu",
        formats=tuple(Format(reach(DEFINITIONS[name]), behaviour(DEFINITIONS[name])) for name in names),
        casts=tuple(one for of_a_value in zip(*rounded, strict=True) for one in of_a_value),
    )


def cast(values: Sequence[float], name: str) -> list[float] | None:
    """The values as float32, then as the format. None where this torch has no such cast."""
    return _through(torch.tensor(values, dtype=torch.float64).to(torch.float32), name)


def behaviour(definition: Definition) -> CastBehaviour | None:
    """What a cast does where the format leaves it open. None where this torch has no such cast."""
    max_float32 = torch.finfo(torch.float32).max
    source = torch.float32
    largest = decode(definition, definition.largest)
    above = min(2 * largest, max_float32)
    if definition.name == "float32":
        source, above = torch.float64, 2 * largest
    became = _through(torch.tensor([above, math.inf, *_between(definition)], dtype=source), definition.name)
    if became is None:
        return None
    return CastBehaviour(
        _overflow(became[0], largest), _overflow(became[1], largest), _rounding(became[2:], definition)
    )


def _through(source: torch.Tensor, name: str) -> list[float] | None:
    try:
        # float32 holds every value of every format, and all of them can be cast to it.
        became: list[float] = source.to(getattr(torch, name)).to(torch.float32).tolist()
    except RuntimeError:  # NotImplementedError, which torch raises here, is one.
        return None
    return became


def _neighbours(definition: Definition) -> list[float]:
    """Three values in a row, the first of an even pattern, near 1."""
    one = definition.bias << definition.mantissa_bits
    first = one + one % 2
    return [decode(definition, pattern) for pattern in range(first, first + 3)]


def _between(definition: Definition) -> list[float]:
    """A quarter, half and three quarters of the way from each of the neighbours to the next."""
    return [low + (high - low) * part / 4 for low, high in pairwise(_neighbours(definition)) for part in (1, 2, 3)]


def _rounding(became: Sequence[float], definition: Definition) -> Rounding:
    """became: what the cast made of the values of `_between`."""
    neighbours = _neighbours(definition)
    places = tuple(neighbours.index(value) if value in neighbours else -1 for value in became)
    return ROUNDINGS.get(places, "in another way")


def _overflow(became: float, largest: float) -> Overflow:
    if math.isnan(became):
        return "nan"
    if math.isinf(became):
        return "inf"
    return "saturate" if became == largest else "other"


def _round(definition: Definition, values: Sequence[float]) -> list[Rounded]:
    by: Literal["torch", "definition"] = "torch"
    became: Sequence[float | None] | None = cast(values, definition.name)
    if became is None:
        by, became = "definition", [nearest(definition, value) for value in values]
    return [_rounded(value, definition.name, one, by) for value, one in zip(values, became, strict=True)]


def _rounded(value: float, name: str, became: float | None, by: Literal["torch", "definition"]) -> Rounded:
    if became is None:
        return Rounded(value, name, None, None, None, None)
    if value == became or (math.isnan(value) and math.isnan(became)):
        return Rounded(value, name, became, 0.0, 0.0, by)
    absolute = abs(became - value)
    return Rounded(value, name, became, absolute, absolute / abs(value) if value else math.inf, by)
