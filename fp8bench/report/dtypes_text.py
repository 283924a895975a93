"""Number formats as text: a table in a terminal, plain text, markdown or json. Looks only; the numbers are in
`schema.formats`.

Tables show limits with 6 digits and what a value becomes with 8, which tells any two values of a format of 16 bits or
fewer apart. json rounds nothing, and says inf and nan as strings, for which its numbers have no words.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from fp8bench.report.rich_table import empty_table
from fp8bench.schema.formats import CastBehaviour, Format, FormatReport, Rounded

NOTHING = "-"
NO_CAST = "no cast in this torch"
BY_DEFINITION = "*"
PACKED = "_x2"
PADDING = 2

FORMAT_HEADINGS = (
    *("dtype", "bits", "s+e+m", "max", "min", "smallest normal", "smallest subnormal", "eps"),
    *("above max becomes", "inf becomes"),
)
CAST_HEADINGS = ("value", "dtype", "becomes", "absolute error", "relative error")
WORDS = {"above max becomes", "inf becomes", "dtype"}
LOST = {"inf", "nan"}


def to_json(report: FormatReport) -> str:
    """Formats and casts with every number unrounded; null where there is none."""
    formats = [_flat(one) for one in report.formats]
    whole = {"torch": report.torch, "device": report.device, "dtypes": formats, "casts": [*map(asdict, report.casts)]}
    return json.dumps(_finite(whole), indent=2, allow_nan=False)


def _flat(one: Format) -> dict[str, Any]:
    """A format in one piece. Its values one by one are for drawing."""
    limits = {name: value for name, value in asdict(one.reach).items() if name != "positive"}
    behaviour = asdict(one.behaviour) if one.behaviour else dict.fromkeys(CastBehaviour.__dataclass_fields__)
    return {**limits, "cast": one.behaviour is not None, **behaviour}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def to_markdown(report: FormatReport) -> str:
    """GitHub tables and the notes under them."""
    return _with_tabulate(report, "github", "\n\n")


def to_plain(report: FormatReport) -> str:
    """Tables for a pipe or a file, the notes under them."""
    return _with_tabulate(report, "simple", "\n")


def _with_tabulate(report: FormatReport, form: str, between: str) -> str:
    from tabulate import tabulate

    tables = [
        tabulate(
            rows,
            headers=list(headings),
            tablefmt=form,
            colalign=["left" if heading in WORDS else "right" for heading in headings],
            disable_numparse=True,
        )
        for headings, rows in _tables(report)
    ]
    return "\n\n".join([*tables, between.join(notes(report))])


def print_rich(report: FormatReport) -> None:
    """To the terminal, a table that is too wide in several. What overflows to inf or nan is red."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for headings, rows in _tables(report):
        for columns in _split(headings, rows, console.width):
            console.print(_rich_table([headings[at] for at in columns], [[row[at] for at in columns] for row in rows]))
    for line in notes(report):
        console.print(Text(line, style="dim"))


def _split(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns for tables at most `width` wide each, if any choice of them is, each with the column that names a row."""
    naming = headings.index("dtype")
    needs = [
        PADDING + max(len(word) for word in [*heading.split(), *(row[at] for row in rows)])
        for at, heading in enumerate(headings)
    ]
    tables: list[list[int]] = [[]]
    for at, need in enumerate(needs):
        if sum(needs[other] for other in {*tables[-1], naming}) + need > width and set(tables[-1]) - {naming}:
            tables.append([naming])
        tables[-1].append(at)
    return tables


def _rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.text import Text

    table = empty_table(collapse_padding=True)
    for heading in headings:
        # A word a line: numbers are narrower than what they are called.
        folded = heading.replace(" ", "\n")
        table.add_column(folded, justify="left" if heading in WORDS else "right", overflow="fold")
    lost = {at for at, heading in enumerate(headings) if heading.endswith("becomes")}
    for row in rows:
        table.add_row(
            *(Text(cell, style="red" if at in lost and cell.lstrip("-") in LOST else "") for at, cell in enumerate(row))
        )
    return table


def _tables(report: FormatReport) -> list[tuple[Sequence[str], list[list[str]]]]:
    tables: list[tuple[Sequence[str], list[list[str]]]] = [(FORMAT_HEADINGS, [*map(_format_row, report.formats)])]
    return [*tables, (CAST_HEADINGS, [*map(_cast_row, report.casts)])] if report.casts else tables


def _format_row(one: Format) -> list[str]:
    reach = one.reach
    limits = (reach.max, reach.min, reach.smallest_normal, reach.smallest_subnormal, reach.eps)
    return [
        reach.name,
        str(reach.bits),
        f"{reach.sign_bits}+{reach.exponent_bits}+{reach.mantissa_bits}",
        *(_number(limit, 6) for limit in limits),
        *((one.behaviour.above_max, one.behaviour.inf) if one.behaviour else (NO_CAST, NOTHING)),
    ]


def _cast_row(one: Rounded) -> list[str]:
    mark = BY_DEFINITION if one.by == "definition" else ""
    becomes = _number(one.becomes, 8) + mark
    return [_number(one.value, 8), one.dtype, becomes, _number(one.absolute_error, 3), _number(one.relative_error, 3)]


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}g}"


def notes(report: FormatReport) -> list[str]:
    """What the tables cannot say: where casts were measured, how they round, and what the marks mean."""
    said = ["s+e+m: bits of sign, exponent and mantissa. eps: the step from 1 to the next value."]
    measured = [one for one in report.formats if one.behaviour]
    if measured:
        said += [
            f"Casts as measured with torch {report.torch} on this {report.device.upper()}, from float32.",
            f"They round {_roundings(measured)}.",
            "above max: tried with twice max, or with the largest float32 where that is less.",
        ]
    if any(one.by == "definition" for one in report.casts):
        said.append(f"{BY_DEFINITION} by the format's definition, to nearest, ties to even, saturating: {NO_CAST}.")
    if any(one.reach.name.endswith(PACKED) for one in report.formats):
        said.append(f"{PACKED}: two values to a byte; the numbers are of one.")
    return said


def _roundings(measured: Sequence[Format]) -> str:
    """The rounding that most share, and which formats have another."""

    def rounding(one: Format) -> str:
        return one.behaviour.rounding if one.behaviour else ""

    shared = [(how, [one.reach.name for one in of]) for how, of in groupby(sorted(measured, key=rounding), rounding)]
    (most, _), *others = sorted(shared, key=lambda one: -len(one[1]))
    return "; ".join([most, *(f"{', '.join(names)}: {how}" for how, names in others)])
