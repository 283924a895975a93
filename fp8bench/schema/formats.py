"""A number format: its range, what a cast to it does, and what became of a value.

Plain data between the room that has torch and the room that draws. These are dataclasses and not `Frozen` models,
which refuse inf and nan: here both are answers.
"""

from dataclasses import dataclass
from typing import Literal

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
    """A format by its numbers. min is the lowest value; eps the step from 1 to the next value above it.

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
class Format:
    """A format, and what casting to it does. behaviour is None where this torch has no such cast."""

    reach: Reach
    behaviour: CastBehaviour | None


@dataclass(frozen=True)
class FormatReport:
    """Formats, widest first, and each value in each of them, value by value. device: where the casts ran."""

    torch: str
    device: str
    formats: tuple[Format, ...]
    casts: tuple[Rounded, ...]
