"""Number formats as a document: their limits, or what values become in them.

The data has every number unrounded, and inf and nan as strings, because json has no such numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fp8bench.numerics.block_formats import BLOCK_FORMATS
from fp8bench.numerics.definitions import Bits, Reach
from fp8bench.report.document import NOTHING, Column, CsvLines, Document, Note, Rows, Table, blocks, telling
from fp8bench.report.written import number

LOST = ("inf", "nan")
SATURATES = "*"
ASK = "What values become, bit by bit: --cast 2.07,-0.78; in blocks that share a scale: --block mxfp8."
LIMITS = (
    "s+e+m: bits of sign, exponent and mantissa. eps: the step from 1 to the next value. _x2: two values to a byte."
)
SHARED = "; ".join(f"{one.name}: {one.block} {one.element} share a {one.scale}" for one in BLOCK_FORMATS.values()) + "."
BY_DEFINITION = "By the formats' definitions, to nearest, ties to even, from float32."


def document(formats: Sequence[Reach], casts: Sequence[Bits]) -> Document:
    """Show the casts if there are any, otherwise the limits."""
    columns, notes = (
        (_cast_columns(casts), _notes(casts)) if casts else (_limit_columns(formats), [LIMITS, SHARED, ASK])
    )
    data = {"dtypes": [*map(_flat, formats)], "casts": [*map(_flat, casts)]}
    rows = data["casts"] or data["dtypes"]
    return Document(
        blocks([Table(tuple(columns), naming=2, tight=True)], [*map(Note, notes)]),
        data=data,
        lines=CsvLines(tuple(rows[0]), tuple(tuple(row.values()) for row in rows)),
    )


def _flat(one: Reach | Bits) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(one).items()
    }


def _limit_columns(formats: Sequence[Reach]) -> list[Column]:
    column = Rows(formats).column
    return [
        column("dtype", lambda one: one.name, "word"),
        column("bits", lambda one: str(one.bits)),
        column("s+e+m", lambda one: f"{one.sign_bits}+{one.exponent_bits}+{one.mantissa_bits}"),
        column("max", lambda one: number(one.max, ".6g")),
        column("min", lambda one: number(one.min, ".6g")),
        column("smallest normal", lambda one: number(one.smallest_normal, ".6g")),
        column("smallest subnormal", lambda one: number(one.smallest_subnormal, ".6g")),
        column("eps", lambda one: number(one.eps, ".6g")),
        column("specials", lambda one: ", ".join(one.specials) or "none", "word"),
    ]


def _cast_columns(casts: Sequence[Bits]) -> list[Column]:
    column = Rows(casts).column

    def becomes(one: Bits) -> str:
        return number(one.becomes, ".8g") + SATURATES * one.saturated

    return [
        column("value", lambda one: number(one.value, ".8g"), once=True),
        column("dtype", lambda one: one.dtype, "word"),
        *telling(column("scale", lambda one: number(one.scale, ".6g"))),
        column("becomes", becomes, tone=lambda one: "bad" if becomes(one).lstrip("-") in LOST else ""),
        column("relative error", lambda one: number(one.relative_error, ".3g")),
        column("sign", lambda one: one.sign or NOTHING, "word"),
        column("exponent", lambda one: one.exponent or NOTHING, "word"),
        column("mantissa", lambda one: one.mantissa or NOTHING, "word"),
    ]


def _notes(casts: Sequence[Bits]) -> list[str]:
    said = [BY_DEFINITION]
    if any(one.scale is not None for one in casts):
        said.append("scale: the values after --cast are one row of a tensor; bits are those of value / scale.")
    if any(one.saturated for one in casts):
        said.append(
            f"{SATURATES} beyond max, where the format has no inf: saturated. torch before 2.12 gives nan there."
        )
    if any(one.becomes is None for one in casts):
        said.append(f"{NOTHING} the format has no bits for it.")
    return said
