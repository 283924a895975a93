"""Number formats as a document: their limits, or what values become in them. The data has every number unrounded, and
inf and nan as strings, because json has no such numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

from fp8bench.numerics.block_formats import BLOCK_FORMATS
from fp8bench.numerics.definitions import Bits, Definition
from fp8bench.tables.document import NOTHING, CsvLines, Document, Note, Rows, Table, blocks, telling
from fp8bench.tables.written import number

FIELDS = (
    *("name", "bits", "sign_bits", "exponent_bits", "mantissa_bits", "max", "min"),
    *("smallest_normal", "smallest_subnormal", "eps", "specials"),
)
SATURATES = "*"
LIMITS = (
    "s+e+m: bits of sign, exponent, mantissa. eps: from 1 to the next value. _x2: two values to a byte.",
    "; ".join(f"{one.name}: {one.block} {one.element} share a {one.scale}" for one in BLOCK_FORMATS.values()) + ".",
    "What values become, bit by bit: --cast 2.07,-0.78; in blocks that share a scale: --block mxfp8.",
)


def document(formats: Sequence[Definition], casts: Sequence[Bits]) -> Document:
    """Show the casts if there are any, otherwise the limits."""
    table, notes = (_casts(casts), _notes(casts)) if casts else (_limits(formats), LIMITS)
    data = {"dtypes": [_flat(one, FIELDS) for one in formats], "casts": [_flat(one, Bits._fields) for one in casts]}
    rows = data["casts"] or data["dtypes"]
    lines = CsvLines(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))
    return Document(blocks([table], [*map(Note, notes)]), data=data, lines=lines)


def _flat(one: Definition | Bits, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in names}
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


def _limits(formats: Sequence[Definition]) -> Table:
    column = Rows(formats).column
    columns = (
        column("dtype", lambda one: one.name, "word"),
        column("s+e+m", lambda one: f"{one.sign_bits}+{one.exponent_bits}+{one.mantissa_bits}"),
        column("max", lambda one: number(one.max, ".5g")),
        column("smallest normal", lambda one: number(one.smallest_normal, ".5g")),
        column("smallest subnormal", lambda one: number(one.smallest_subnormal, ".4g")),
        column("eps", lambda one: number(one.eps, ".3g")),
        column("has", lambda one: " ".join(one.specials) or NOTHING, "word"),
    )
    return Table(columns, whole=True)


def _casts(casts: Sequence[Bits]) -> Table:
    column = Rows(casts).column
    columns = (
        column("value", lambda one: number(one.value, ".6g"), once=True),
        column("dtype", lambda one: one.dtype, "word"),
        *telling(column("scale", lambda one: number(one.scale, ".4g"))),
        column("becomes", lambda one: number(one.becomes, ".6g") + SATURATES * one.saturated),
        column("error", lambda one: number(one.relative_error, ".2g")),
        column("sign", lambda one: one.sign or NOTHING, "word"),
        column("exponent", lambda one: one.exponent or NOTHING, "word"),
        column("mantissa", lambda one: one.mantissa or NOTHING, "word"),
    )
    return Table(columns, naming=2, whole=True)


def _notes(casts: Sequence[Bits]) -> list[str]:
    said = ["By the formats' definitions, to nearest, ties to even, from float32. error: relative."]
    if any(one.scale is not None for one in casts):
        said.append("scale: of a block of the values, which are one row of a tensor; bits are those of value / scale.")
    if any(one.saturated for one in casts):
        said.append(
            f"{SATURATES} beyond max, where the format has no inf: saturated. torch before 2.12 gives nan there."
        )
    if any(one.becomes is None for one in casts):
        said.append(f"{NOTHING} the format has no bits for it.")
    return said
