"""Number formats as a document: their limits, or what values become in them. The data has every number unrounded, and
inf and nan as strings, because json has no such numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

from fp8bench.numerics.definitions import BLOCK, E4M3, E8M0, MXFP8, Bits, Definition
from fp8bench.tables.document import NOTHING, CsvLines, Document, Table, blocks, notes, telling
from fp8bench.tables.study import Column, word

FIELDS = (
    *("name", "bits", "sign_bits", "exponent_bits", "mantissa_bits", "max", "min"),
    *("smallest_normal", "smallest_subnormal", "eps", "specials"),
)
LIMITS: tuple[Column[Definition], ...] = (
    word("dtype", lambda one: one.name),
    Column("s+e+m", lambda one: f"{one.sign_bits}+{one.exponent_bits}+{one.mantissa_bits}", str),
    Column("max", lambda one: one.max, ".5g"),
    Column("smallest normal", lambda one: one.smallest_normal, ".5g"),
    Column("smallest subnormal", lambda one: one.smallest_subnormal, ".4g"),
    Column("eps", lambda one: one.eps, ".3g"),
    word("has", lambda one: " ".join(one.specials) or None),
)
SATURATES = "*"


def _becomes(one: Bits) -> str:
    return NOTHING if one.becomes is None else f"{one.becomes:.6g}" + SATURATES * one.saturated


def _digits(one: Bits) -> str | None:
    return " ".join(digits or NOTHING for digits in (one.sign, one.exponent, one.mantissa)) if one.exponent else None


CASTS: tuple[Column[Bits], ...] = (
    Column("value", lambda one: one.value, ".6g", once=True),
    word("dtype", lambda one: one.dtype),
    Column("scale", lambda one: one.scale, ".4g"),
    Column("becomes", _becomes, str),
    Column("error", lambda one: one.relative_error, ".2g"),
    word("sign exponent mantissa", _digits),
)


def document(formats: Sequence[Definition], casts: Sequence[Bits]) -> Document:
    """Show the casts if there are any, otherwise the limits."""
    data = {"dtypes": [_flat(one, FIELDS) for one in formats], "casts": [_flat(one, Bits._fields) for one in casts]}
    rows = data["casts"] or data["dtypes"]
    every = [column.cells(casts) for column in CASTS] if casts else [column.cells(formats) for column in LIMITS]
    columns = (*every[:2], *telling(every[2]), *every[3:]) if casts else every
    said = notes(
        (
            not casts,
            "s+e+m: bits of sign, exponent, mantissa. eps: from 1 to the next value. _x2: two values to a byte.",
        ),
        (not casts, f"{MXFP8}: {BLOCK} {E4M3.name} share a {E8M0.name}."),
        (not casts, "What values become, bit by bit: --cast 2.07,-0.78; in blocks that share a scale: --block mxfp8."),
        (casts, "By the formats' definitions, to nearest, ties to even, from float32. error: relative."),
        (
            any(one.scale is not None for one in casts),
            "scale: of a block of the values, which are one row of a tensor; bits are those of value / scale.",
        ),
        (
            any(one.saturated for one in casts),
            f"{SATURATES} beyond max, where the format has no inf: saturated. torch before 2.12 gives nan there.",
        ),
        (any(one.becomes is None for one in casts), f"{NOTHING} the format has no bits for it."),
    )
    return Document(
        blocks([Table(tuple(columns), whole=True)], said),
        data=data,
        lines=CsvLines(tuple(rows[0]), tuple(tuple(row.values()) for row in rows)),
    )


def _flat(one: Definition | Bits, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in names}
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
