"""A number format: its range, what a cast to it does, and what became of a value.

Plain data between the room that has torch and the room that draws. These are dataclasses and not `Frozen` models,
which refuse inf and nan: here both are answers.
"""

from dataclasses import dataclass
from typing import Literal

from fp8bench.schema.blocks import BlockScales

ALIGNMENT = 16
"""Every dimension of an fp8 GEMM is a multiple of it: cuBLASLt and CUTLASS read operands in pieces of 16 bytes, and an
fp8 value is one byte.
"""


def padded(size: int, multiple: int = ALIGNMENT) -> int:
    """The next size that is a multiple; `size` itself where it is one."""
    return -(-size // multiple) * multiple


Overflow = Literal["saturate", "inf", "nan", "other"]
"""What a cast makes of a value that is too large: the format's max, infinity, nan, or none of these."""

Rounding = Literal[
    "to nearest, ties to even", "to nearest, ties away from zero", "to nearest, ties toward zero", "in another way"
]
"""Which of its two neighbours a value between them becomes; even: the one whose last bit is 0."""


@dataclass(frozen=True)
class Reach:
    """A format by its numbers. min is the lowest value; eps the step from 1 to the next value above it; specials, which
    of inf and nan it has.

    positive: every finite value above zero, ascending, where the format has 8 bits or fewer.
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
    """What this torch's cast from float32 to a format does, as measured; from float64, where it is to float32.

    above_max: of twice max, or of float32's max where that is less. A value that is nearer to max than to where the
    next would be rounds to max, and does not count as above.
    """

    above_max: Overflow
    inf: Overflow
    rounding: Rounding


@dataclass(frozen=True)
class Rounded:
    """A value and what a format makes of it.

    becomes and the errors are None where the format has no answer. Errors are taken from the value as it was given:
    0 where it is held exactly (inf by inf and nan by nan too), else nan where the arithmetic gives nan.
    by: who rounded; None where nobody could.
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
    highest first; a format without a sign or mantissa has none. becomes = +-significand * 2^power; both None of inf and
    nan. saturated: the value was beyond max, which it became. becomes is None where the format has nothing for it.
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
"""Of an operation: wrong is a result that is not that of the same operation on float32."""


@dataclass(frozen=True)
class Tried:
    """An operation that was tried on a tensor of one format. gives: the dtype of its result; reason: torch's, of what
    it refused; both None otherwise.
    """

    operation: str
    dtype: str
    device: str
    outcome: Outcome
    gives: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Format:
    """A format, and what casting to it does. behaviour is None where this torch has no such cast, or none was tried."""

    reach: Reach
    behaviour: CastBehaviour | None


@dataclass(frozen=True)
class FormatReport:
    """Formats, widest first, and each value in each of them, value by value. torch, device: of the casts; None where
    nothing was cast, and all is by definition. tried: operation by operation; empty: none was tried. blocks: block
    scales, emulated.
    """

    formats: tuple[Format, ...]
    torch: str | None = None
    device: str | None = None
    casts: tuple[Rounded, ...] = ()
    bits: tuple[Bits, ...] = ()
    tried: tuple[Tried, ...] = ()
    blocks: BlockScales | None = None
