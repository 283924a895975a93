"""`fp8bench numerics formats`: what number formats hold, and what values become in them. Without torch."""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from fp8bench.cli.options import Form, option
from fp8bench.cli.output import show
from fp8bench.numerics.definitions import BLOCK, DEFINITIONS, E4M3, E8M0, MXFP8, Bits, Definition, bits, in_blocks
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.tables.document import NOTHING, CsvLines, Document, Table, blocks, notes, telling
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import number

HELP = "fp8bench numerics formats --help"
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
CASTS: tuple[Column[Bits], ...] = (
    Column("value", lambda one: one.value, ".6g", once=True),
    word("dtype", lambda one: one.dtype),
    Column("scale", lambda one: one.scale, ".4g"),
    Column("becomes", lambda one: one, lambda one: number(one.becomes, ".6g") + "*" * one.saturated),
    Column("error", lambda one: one.relative_error, ".2g"),
    word(
        "sign exponent mantissa",
        lambda one: " ".join(part or NOTHING for part in one.digits) if any(one.digits) else None,
    ),
)


def formats(
    cast: Annotated[tuple[str, ...], option("NUMBER[,NUMBER...]", "Show what each becomes, and its bits.")] = (),
    block: Annotated[tuple[str, ...], option(MXFP8, "Cast the values as blocks that share a scale, too.")] = (),
    names: Annotated[
        tuple[str, ...], option("NAME", "Only this format. Repeatable.", "number_formats", "--dtype")
    ] = (),
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
    casts = [[bits(one, value) for value in values] for one in chosen]
    casts += [in_blocks(values)] if block else []
    show(document(chosen, [one for of_a_value in zip(*casts, strict=True) for one in of_a_value]), form)


COMMANDS = {"formats": formats}


def parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas. Raises UsageError, also for what float64 shows as another number."""
    found = []
    for part in map(str.strip, text.split(",")):
        try:
            value = float(part)
        except ValueError as error:
            why = f"--cast {part!r} is not a number" if part else "--cast has an empty place where a number should be"
            raise UsageError(why, "Give numbers with commas between, as 2.07,-0.78 or inf") from error
        lost = value == 0 and re.search("[1-9]", re.split("[eE]", part)[0])
        if lost or (math.isinf(value) and "inf" not in part.lower()):
            what = f"--cast {part!r} is {value} in float64, in which numbers are read"
            raise UsageError(what, f"Give {value}, or another")
        found.append(value)
    return found


def document(formats: Sequence[Definition], casts: Sequence[Bits]) -> Document:
    """Show the casts if there are any, otherwise the limits. The data has every number unrounded, and inf and nan as
    strings, because json has no such numbers.
    """
    data = {"dtypes": [_flat(one, FIELDS) for one in formats], "casts": [_flat(one, Bits._fields) for one in casts]}
    rows = data["casts"] or data["dtypes"]
    if casts:
        columns = telling(*(column.cells(casts) for column in CASTS))
        said = notes(
            (
                True,
                "By definition, to nearest, ties to even, from float32. error: relative. -: no bits for it.",
            ),
            (
                any(one.scale for one in casts),
                "scale: of a block of the values, one row of a tensor; bits: of value / scale.",
            ),
            (
                any(one.saturated for one in casts),
                "* beyond max, where the format has no inf: saturated. torch before 2.12 gives nan there.",
            ),
        )
    else:
        columns = [column.cells(formats) for column in LIMITS]
        said = notes(
            (
                True,
                "s+e+m: bits of sign, exponent, mantissa. eps: from 1 to the next value. _x2: two values to a byte.",
            ),
            (True, f"{MXFP8}: {BLOCK} {E4M3.name} share a {E8M0.name}."),
            (True, "What values become, bit by bit: --cast 2.07,-0.78; in blocks that share a scale: --block mxfp8."),
        )
    lines = CsvLines(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))
    return Document(blocks([Table(tuple(columns), whole=True)], said), data=data, lines=lines)


def _flat(one: Definition | Bits, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in names}
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}
