"""`fp8bench numerics formats`: what number formats hold, and what values become in them. Without torch."""

import math
from decimal import Decimal, InvalidOperation
from operator import itemgetter
from typing import Annotated, Any

from fp8bench.cli.options import Form, option
from fp8bench.cli.output import show
from fp8bench.numerics.definitions import BLOCK, DEFINITIONS, E4M3, E8M0, MXFP8, Bits, bits, in_blocks
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.tables.document import CsvLines, Document, blocks, notes
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import number

HELP = "fp8bench numerics formats --help"
LIMITS: tuple[Column[dict[str, Any]], ...] = (
    word("dtype", itemgetter("name")),
    Column("s+e+m", lambda one: f"{one['sign_bits']}+{one['exponent_bits']}+{one['mantissa_bits']}", str),
    Column("max", itemgetter("max"), ".5g"),
    Column("smallest normal", itemgetter("smallest_normal"), ".5g"),
    Column("smallest subnormal", itemgetter("smallest_subnormal"), ".4g"),
    Column("eps", itemgetter("eps"), ".3g"),
    word("has", lambda one: " ".join(one["specials"]) or None),
)
CASTS: tuple[Column[Bits], ...] = (
    Column("value", lambda one: one.value, ".6g", once=True),
    word("dtype", lambda one: one.dtype),
    Column("scale", lambda one: one.scale, ".4g"),
    Column("becomes", lambda one: one, lambda one: number(one.becomes, ".6g") + "*" * one.saturated),
    Column("error", lambda one: one.relative_error, ".2g"),
    word(
        "sign exponent mantissa",
        lambda one: f"{one.sign or '-'} {one.exponent} {one.mantissa or '-'}" if one.exponent else None,
    ),
)


def formats(
    cast: Annotated[tuple[str, ...], option("NUMBER[,NUMBER...]", "Show what each becomes, and its bits.")] = (),
    block: Annotated[tuple[str, ...], option(MXFP8, "Cast the values as blocks that share a scale, too.")] = (),
    names: Annotated[tuple[str, ...], option("NAME", "Only this format. Repeatable.", "--dtype")] = (),
    form: Form = "table",
) -> None:
    """Limits of number formats; the bits of a value in each, what it becomes, and block scales."""
    values = [number for text in cast for number in parse_numbers(text)]
    for name in names:
        require_known("--dtype", name, list(DEFINITIONS), HELP)
    for name in block:
        require_known("--block", name, [MXFP8], HELP)
    if block and not values:
        raise UsageError("--block casts values, and there are none", "Add them, as --cast 300,1,1e-4")
    chosen = [one for name, one in DEFINITIONS.items() if name in (names or DEFINITIONS)]
    limits = [one.limits for one in chosen]
    by_format = [[bits(one, value) for value in values] for one in chosen] + ([in_blocks(values)] if block else [])
    casts = [one for of_a_value in zip(*by_format, strict=True) for one in of_a_value]
    table = table_of(CASTS, casts, whole=True) if casts else table_of(LIMITS, limits, every=True, whole=True)
    beyond = any(one.saturated for one in casts)
    said = notes(
        (not casts, "s+e+m: bits of sign, exponent, mantissa. eps: from 1 to the next. _x2: two values to a byte."),
        (not casts, f"{MXFP8}: {BLOCK} {E4M3.name} share a {E8M0.name}."),
        (not casts, "What values become, bit by bit: --cast 2.07,-0.78; in blocks that share a scale: --block mxfp8."),
        (casts, "By definition, to nearest, ties to even, from float32. error: relative. -: no bits for it."),
        (block, "scale: of a block of the values, a row of a tensor; bits: of value / scale."),
        (beyond, "* saturated: beyond max, without inf. torch before 2.12 gives nan there."),
    )
    data = {"dtypes": [_in_json(one) for one in limits], "casts": [_in_json(one._asdict()) for one in casts]}
    rows = data["casts"] or data["dtypes"]
    lines = CsvLines(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))
    show(Document(blocks([table], said), data=data, lines=lines), form)


COMMANDS = {"formats": formats}


def parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas. Raises UsageError, also for what float64 shows as another number."""
    found = []
    for part in map(str.strip, text.split(",")):
        try:
            exact = Decimal(part)
            value = float(exact)
        except (InvalidOperation, ValueError) as error:
            why = f"--cast {part!r} is not a number" if part else "--cast has an empty place where a number should be"
            raise UsageError(why, "Give numbers with commas between, as 2.07,-0.78 or inf") from error
        if math.isinf(value) != exact.is_infinite() or (value == 0) != exact.is_zero():
            what = f"--cast {part!r} is {value} in float64, in which numbers are read"
            raise UsageError(what, f"Give {value}, or another")
        found.append(value)
    return found


def _in_json(values: dict[str, Any]) -> dict[str, Any]:
    # It has no inf and nan.
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
