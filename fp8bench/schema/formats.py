"""A number format: its range, how a cast to it behaves, and what a value becomes in it.

This is plain data, passed from the packages that import torch to those that render. The classes are dataclasses and not
`Frozen` models, because those refuse inf and nan, which are valid results here.
"""

from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.blocks import BlockScales

ALIGNMENT = 16
"""Every dimension of an fp8 GEMM is a multiple of this number: cuBLASLt and CUTLASS read operands in pieces of 16
bytes, and an fp8 value is one byte.
"""


def padded(size: int, multiple: int = ALIGNMENT) -> int:
    """Return the smallest multiple that is not less than `size`."""
    return -(-size // multiple) * multiple


Overflow = Literal["saturate", "inf", "nan", "other"]
"""What a cast makes of a value that is too large: the format's max, infinity, nan, or anything else."""

Rounding = Literal[
    "to nearest, ties to even", "to nearest, ties away from zero", "to nearest, ties toward zero", "in another way"
]
"""How a value between two neighbours is rounded. even: to the neighbour whose last bit is 0."""


@dataclass(frozen=True)
class Reach:
    """The numbers that describe a format. min: the lowest value. eps: the step from 1 to the next value above it.
    specials: which of inf and nan it has.

    positive: every finite value above zero, ascending, if the format has 8 bits or fewer.
    """

    name: str
    bits: int
    sign_bits: int
    exponent_bits: int
    mantissa_bits: int
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float | None
    eps: float
    specials: tuple[str, ...]
    positive: tuple[float, ...] | None


@dataclass(frozen=True)
class CastBehaviour:
    """How this torch's cast from float32 to a format behaves, as measured. For float32 itself, the cast is from
    float64.

    above_max: the result for twice max, or for float32's max if that is less. A value nearer to max than to the place
    where the next value would be rounds to max, and does not count as above it.
    """

    above_max: Overflow
    inf: Overflow
    rounding: Rounding


@dataclass(frozen=True)
class Rounded:
    """A value and what a format makes of it.

    becomes and the errors are None if the format cannot represent a result. Errors are taken from the value as given:
    0 if it is held exactly (also inf by inf and nan by nan), nan if their arithmetic yields nan. by: who rounded the
    value; None if it was not rounded.
    """

    value: float
    dtype: str
    becomes: float | None
    absolute_error: float | None
    relative_error: float | None
    by: Literal["torch", "definition"] | None


@dataclass(frozen=True)
class Bits:
    """The bits of what a value becomes in a format, by the format's definition. sign, exponent, mantissa: digits, the
    most significant first; empty for a format without a sign or mantissa. becomes = +-significand * 2^power; both are
    None for inf and nan. saturated: whether the value was beyond max and became max. becomes: None if the format has no
    result.
    """

    value: float
    dtype: str
    becomes: float | None
    sign: str = ""
    exponent: str = ""
    mantissa: str = ""
    significand: float | None = None
    power: int | None = None
    saturated: bool = False


Outcome = Literal["runs", "refused", "wrong"]
"""The outcome of an operation. wrong: its result differs from that of the same operation on float32."""


@dataclass(frozen=True)
class Tried:
    """An operation that was tried on a tensor of one format. gives: the dtype of its result. reason: why torch refused
    it. Both are None if they do not apply.
    """

    operation: str
    dtype: str
    device: str
    outcome: Outcome
    gives: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Format:
    """A format, and the behaviour of casts to it, which is None if this torch has no such cast or none was tried."""

    reach: Reach
    behaviour: CastBehaviour | None


@dataclass(frozen=True)
class FormatReport:
    """Formats, widest first, and each value in each of them, value by value. torch, device: those of the casts; None if
    nothing was cast and all results follow from definitions. tried: operation by operation; empty if none was tried.
    blocks: block scales, emulated.
    """

    formats: tuple[Format, ...]
    torch: str | None = None
    device: str | None = None
    casts: tuple[Rounded, ...] = ()
    bits: tuple[Bits, ...] = ()
    tried: tuple[Tried, ...] = ()
    blocks: BlockScales | None = None
