"""Determines how this torch casts values to number formats, by casting.

A format does not define how a cast rounds between two values, nor what a value above max, or inf, becomes. Both are
found by casting, and not taken from documentation. Most casts round to nearest, ties to even, as in IEEE 754; torch's
cast to float8_e8m0fnu takes the larger of two. torch's eager cast to float8_e4m3fn returned nan above max before 2.12,
and saturates since (https://github.com/pytorch/pytorch/pull/178817).

A value first becomes a float32, as in a tensor that a model would cast. Casts run on the CPU, which every machine has;
GPU kernels that scale and cast in one step may treat overflow differently. torch has no cast to float4_e2m1fn_x2: its
values are rounded by the definition, and are marked as such.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch

from fp8bench.numerics.definitions import DEFINITIONS, Definition, decode, nearest, reach
from fp8bench.schema.formats import CastBehaviour, Format, FormatReport, Overflow, Rounded, Rounding

ROUNDINGS: dict[tuple[int, ...], Rounding] = {
    (0, 0, 1, 1, 2, 2): "to nearest, ties to even",
    (0, 1, 1, 1, 2, 2): "to nearest, ties away from zero",
    (0, 0, 1, 1, 1, 2): "to nearest, ties toward zero",
}
"""The rounding, by which of its three neighbours each value of `_between` becomes."""


def examine(names: Sequence[str], values: Sequence[float]) -> FormatReport:
    """Return what each format holds, how a cast to it behaves, and what each value becomes. names: in DEFINITIONS."""
    rounded = [_round(DEFINITIONS[name], values) for name in names]
    return FormatReport(
        torch=str(torch.__version__),
        device="cpu",
        formats=tuple(Format(reach(DEFINITIONS[name]), behaviour(DEFINITIONS[name])) for name in names),
        casts=tuple(one for of_a_value in zip(*rounded, strict=True) for one in of_a_value),
    )


def cast(values: Sequence[float], name: str) -> list[float] | None:
    """Cast the values to float32, then to the format. None if this torch has no such cast."""
    return _through(torch.tensor(values, dtype=torch.float64).to(torch.float32), name)


def behaviour(definition: Definition) -> CastBehaviour | None:
    """Return how a cast behaves where the format does not define it. None if this torch has no such cast."""
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
    if not hasattr(torch, name):
        return None
    try:
        # float32 holds every value of every format, and all formats can be cast to it.
        became: list[float] = source.to(getattr(torch, name)).to(torch.float32).tolist()
    except RuntimeError:  # NotImplementedError, which torch raises here, is one.
        return None
    return became


def _neighbours(definition: Definition) -> list[float]:
    """Return three values in a row near 1, the first of which has an even pattern."""
    one = definition.bias << definition.mantissa_bits
    first = one + one % 2
    return [decode(definition, pattern) for pattern in range(first, first + 3)]


def _between(definition: Definition) -> list[float]:
    """Return the values a quarter, half and three quarters of the way from each neighbour to the next."""
    return [low + (high - low) * part / 4 for low, high in pairwise(_neighbours(definition)) for part in (1, 2, 3)]


def _rounding(became: Sequence[float], definition: Definition) -> Rounding:
    """Return the rounding. became: what the cast made of the values of `_between`."""
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
    """Round the values by torch's cast, or by the definition if this torch lacks the cast or the format."""
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
