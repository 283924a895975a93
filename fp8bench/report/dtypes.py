"""Number formats as a document.

Tables show limits with 6 digits and what a value becomes with 8, which tells any two values of a format of 16 bits or
fewer apart. Machines get every number unrounded, and inf and nan as strings, for which json's numbers have no words.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

from fp8bench.report.document import NOTHING, Column, Document, Figure, Kind, Note, Table, Tone, blocks
from fp8bench.report.dtypes_figure import number_lines
from fp8bench.schema.formats import CastBehaviour, Format, FormatReport, Rounded

PICTURE = "formats"
"""The name of the figure."""

NO_CAST = "no cast in this torch"
BY_DEFINITION = "*"
PACKED = "_x2"
LOST = {"inf", "nan"}


def document(report: FormatReport) -> Document:
    """What overflows to inf or nan is marked as bad."""
    casts = [_casts(report.casts)] if report.casts else []
    shown = blocks([_limits(report.formats)], casts, [*map(Note, notes(report))])
    return Document(shown, data=_data(report), figures=(Figure(PICTURE, partial(number_lines, report)),))


def _data(report: FormatReport) -> Any:
    """Null where there is none."""
    formats = [_flat(one) for one in report.formats]
    whole = {"torch": report.torch, "device": report.device, "dtypes": formats, "casts": [*map(asdict, report.casts)]}
    return _finite(whole)


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


def _limits(formats: Sequence[Format]) -> Table:
    def limit(heading: str, write: Callable[[Format], float | None]) -> Column:
        return Column(heading, tuple(_number(write(one), 6) for one in formats))

    behaviours = [one.behaviour for one in formats]
    columns = (
        Column("dtype", tuple(one.reach.name for one in formats), "word"),
        Column("bits", tuple(str(one.reach.bits) for one in formats)),
        Column("s+e+m", tuple(map(_layout, formats))),
        limit("max", lambda one: one.reach.max),
        limit("min", lambda one: one.reach.min),
        limit("smallest normal", lambda one: one.reach.smallest_normal),
        limit("smallest subnormal", lambda one: one.reach.smallest_subnormal),
        limit("eps", lambda one: one.reach.eps),
        _outcome("above max becomes", [one.above_max if one else NO_CAST for one in behaviours], "word"),
        _outcome("inf becomes", [one.inf if one else NOTHING for one in behaviours], "word"),
    )
    return Table(columns, tight=True)


def _layout(one: Format) -> str:
    return f"{one.reach.sign_bits}+{one.reach.exponent_bits}+{one.reach.mantissa_bits}"


def _casts(casts: Sequence[Rounded]) -> Table:
    becomes = [_number(one.becomes, 8) + (BY_DEFINITION if one.by == "definition" else "") for one in casts]
    columns = (
        Column("value", tuple(_number(one.value, 8) for one in casts)),
        Column("dtype", tuple(one.dtype for one in casts), "word"),
        _outcome("becomes", becomes, "quantity"),
        Column("absolute error", tuple(_number(one.absolute_error, 3) for one in casts)),
        Column("relative error", tuple(_number(one.relative_error, 3) for one in casts)),
    )
    return Table(columns, naming=2, tight=True)


def _outcome(heading: str, cells: Sequence[str], kind: Kind) -> Column:
    tones: tuple[Tone, ...] = tuple("bad" if cell.lstrip("-") in LOST else "" for cell in cells)
    return Column(heading, tuple(cells), kind, tones=tones)


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
