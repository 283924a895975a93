"""What this torch's casts do, found out by casting: no version is asked, and nothing is taken from a document.

A format leaves three questions to the cast. Between two of its values it rounds: to the nearest, and of two that are
equally near to the one whose last bit is 0, as IEEE 754 would have it; torch's cast to float8_e8m0fnu, a format of
exponents only, takes the larger. Above max it saturates, or gives inf or nan: torch's eager cast to float8_e4m3fn gave
nan before 2.12, and saturates since (https://github.com/pytorch/pytorch/pull/178817). Training that overflows is lost
to nan by the one, and clipped by the other. And inf need not fare as a large number does.

A value is a float32 first, as in a tensor that a model would cast, and then the format's: what float64 holds beyond
float32 is rounded twice, as it is inside torch. Casts are the CPU's, which every machine has. Kernels that scale and
cast in one, as precision modes have on a GPU, may treat overflow otherwise.

float4_e2m1fn_x2 is two values in a byte, and torch stores it without casting to it. Its values are rounded by the
format's definition instead, and say so.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from fp8bench.numerics.dtypes import DEFINITIONS, RARE, Definition, decode, nearest, reach
from fp8bench.schema.formats import CastBehaviour, Format, FormatReport, Overflow, Rounded, Rounding

TIES: dict[tuple[int, int], Rounding] = {
    (0, 1): "to nearest, ties to even",
    (1, 1): "to nearest, ties away from zero",
    (0, 0): "to nearest, ties toward zero",
}
"""By whether the upper neighbour is taken of a tie above an even value, and of one above an odd value."""


def known_names(*, every: bool) -> list[str]:
    """The formats that this torch has, in the order in which they are told. every: the rare ones too."""
    return [name for name in DEFINITIONS if (every or name not in RARE) and hasattr(torch, name)]


def examine(names: Sequence[str], values: Sequence[float]) -> FormatReport:
    """What each format holds, what a cast to it does, and what it makes of each value. names: of `known_names`."""
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
    low, middle, high = _neighbours(definition)
    below_even, tie_above_even, above_even, below_odd, tie_above_odd, above_odd = became
    is_nearest = [below_even, above_even, below_odd, above_odd] == [low, middle, middle, high]
    if not is_nearest or tie_above_even not in (low, middle) or tie_above_odd not in (middle, high):
        return "in another way"
    return TIES.get((int(tie_above_even == middle), int(tie_above_odd == high)), "in another way")


def _overflow(became: float, largest: float) -> Overflow:
    if math.isnan(became):
        return "nan"
    if math.isinf(became):
        return "inf"
    return "saturate" if became == largest else "other"


def _round(definition: Definition, values: Sequence[float]) -> list[Rounded]:
    became = cast(values, definition.name)
    if became is not None:
        return [
            _held_against(value, definition.name, one, by_torch=True) for value, one in zip(values, became, strict=True)
        ]
    return [_held_against(value, definition.name, nearest(definition, value), by_torch=False) for value in values]


def _held_against(value: float, name: str, became: float | None, *, by_torch: bool) -> Rounded:
    if became is None:
        return Rounded(value, name, None, None, None, None)
    absolute = _absolute(value, became)
    return Rounded(value, name, became, absolute, _relative(absolute, value), "torch" if by_torch else "definition")


def _absolute(value: float, became: float) -> float:
    """How far the value was moved: 0 where it was not, inf by inf and nan by nan included."""
    if value == became or (math.isnan(value) and math.isnan(became)):
        return 0.0
    return abs(became - value)


def _relative(absolute: float, value: float) -> float:
    if absolute == 0:
        return 0.0
    return absolute / abs(value) if value else math.inf
