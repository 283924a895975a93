"""Number formats as a document: what they can hold, the bits of values, and what torch does with them.

Tables show limits with 6 digits and the result of a cast with 8, which distinguishes any two values of a format of 16
bits or fewer. The data has every number unrounded, and inf and nan as strings, because json has no such numbers.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

from fp8bench.report import blocks as block_scales
from fp8bench.report.document import NOTHING, Document, Figure, Heading, Letters, Note, Rows, Table, Tone, blocks
from fp8bench.report.number_lines import number_lines
from fp8bench.report.written import number
from fp8bench.schema.formats import Bits, CastBehaviour, Format, FormatReport, Rounded, Tried

PICTURE = "formats"
"""The name of the figure."""

NO_CAST = "no cast in this torch"
BY_DEFINITION = "*"
PACKED = "_x2"
LOST = {"inf", "nan"}
SATURATES = "*"
DTYPE_NAME = re.compile(r"'?\bFloat[48]_e\w+'?")
ASK_TORCH = (
    "What this torch's casts do: --cast 2.07,-0.78; the bits of a value: --value 0.3952; what torch computes: "
    "--arithmetic; block scales: --blocks."
)
BITS = "Bits by the formats' definitions, to nearest, ties to even, from float32; the highest first."
TRIED = (
    "Each was tried and its result compared with float32's. What is refused needs a cast to bfloat16 or float32 first; "
    "a GEMM of fp8 is scaled_mm."
)
EMULATED_ON_CPU = "A CPU's result is computed in float32 and rounded: it does not show that fp8 units would run it."


def document(report: FormatReport) -> Document:
    """Show what was requested: bits, tried operations, block scales and, unless only these were requested, the formats'
    limits. What overflows to inf or nan is marked as bad.
    """
    letters = Letters(_shared(one.reason) for one in report.tried if one.reason)
    asked_else = report.bits or report.tried or report.blocks
    limits = [_limits(report)] if report.casts or not asked_else else []
    shown = blocks(
        limits,
        [_casts(report.casts)] if report.casts else [],
        [_bits(report.bits)] if report.bits else [],
        _tried(report.tried, report.torch or "", letters) if report.tried else [],
        [*map(Note, notes(report)), *map(Note, letters.lines())],
        *(block_scales.parts(report.blocks) if report.blocks else ()),
    )
    return Document(shown, data=_data(report), figures=(Figure(PICTURE, partial(number_lines, report)),))


def _data(report: FormatReport) -> Any:
    formats = [_flat(one) for one in report.formats]
    if report.torch is None:
        formats = [{**one, "cast": None} for one in formats]
    whole = {
        "torch": report.torch,
        "device": report.device,
        "dtypes": formats,
        "casts": [*map(asdict, report.casts)],
        "bits": [*map(asdict, report.bits)],
        "tried": [*map(asdict, report.tried)],
        "blocks": report.blocks.model_dump(mode="json") if report.blocks else None,
    }
    return _finite(whole)


def _flat(one: Format) -> dict[str, Any]:
    """Return a format as one flat mapping, without its list of values, which is only for drawing."""
    limits = {name: value for name, value in asdict(one.reach).items() if name != "positive"}
    behaviour = asdict(one.behaviour) if one.behaviour else dict.fromkeys(CastBehaviour.__dataclass_fields__)
    return {**limits, "cast": one.behaviour is not None, **behaviour}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _limits(report: FormatReport) -> Table:
    """Return the table of limits. The results of overflow are included only if this torch was tried."""
    column = Rows(report.formats).column

    def above_max(one: Format) -> str:
        return one.behaviour.above_max if one.behaviour else NO_CAST

    def inf(one: Format) -> str:
        return one.behaviour.inf if one.behaviour else NOTHING

    columns = [
        column("dtype", lambda one: one.reach.name, "word"),
        column("bits", lambda one: str(one.reach.bits)),
        column("s+e+m", lambda one: f"{one.reach.sign_bits}+{one.reach.exponent_bits}+{one.reach.mantissa_bits}"),
        column("max", lambda one: number(one.reach.max, ".6g")),
        column("min", lambda one: number(one.reach.min, ".6g")),
        column("smallest normal", lambda one: number(one.reach.smallest_normal, ".6g")),
        column("smallest subnormal", lambda one: number(one.reach.smallest_subnormal, ".6g")),
        column("eps", lambda one: number(one.reach.eps, ".6g")),
        column("specials", lambda one: ", ".join(one.reach.specials) or "none", "word"),
    ]
    of_casts = [
        column("above max becomes", above_max, "word", tone=lambda one: _tone(above_max(one))),
        column("inf becomes", inf, "word", tone=lambda one: _tone(inf(one))),
    ]
    return Table((*columns, *(of_casts if report.torch is not None else ())), tight=True)


def _casts(casts: Sequence[Rounded]) -> Table:
    column = Rows(casts).column

    def becomes(one: Rounded) -> str:
        return number(one.becomes, ".8g") + (BY_DEFINITION if one.by == "definition" else "")

    columns = (
        column("value", lambda one: number(one.value, ".8g")),
        column("dtype", lambda one: one.dtype, "word"),
        column("becomes", becomes, tone=lambda one: _tone(becomes(one))),
        column("absolute error", lambda one: number(one.absolute_error, ".3g")),
        column("relative error", lambda one: number(one.relative_error, ".3g")),
    )
    return Table(columns, naming=2, tight=True)


def _bits(found: Sequence[Bits]) -> Table:
    """Return the table of bits as they lie in memory, split into sign, exponent and mantissa."""
    column = Rows(found).column

    def becomes(one: Bits) -> str:
        return number(one.becomes, ".6g") + (SATURATES if one.saturated else "")

    columns = (
        column("value", lambda one: number(one.value, ".8g"), once=True),
        column("dtype", lambda one: one.dtype, "word"),
        column("sign", lambda one: one.sign or NOTHING, "word"),
        column("exponent", lambda one: one.exponent or NOTHING, "word"),
        column("mantissa", lambda one: one.mantissa or NOTHING, "word"),
        column("which is", becomes, tone=lambda one: _tone(becomes(one))),
        column("read as", _read, "word"),
    )
    return Table(columns, naming=2)


def _read(one: Bits) -> str:
    """Write the value that the bits encode, e.g. `1.625 x 2^-2`, with its sign."""
    if one.significand is None or one.becomes is None:
        return NOTHING
    sign = "-" if math.copysign(1.0, one.becomes) < 0 else ""
    return f"{sign}{one.significand:.7g} x 2^{one.power}"


def _tried(tried: Sequence[Tried], torch: str, letters: Letters) -> list[Heading | Table]:
    """Return a table with a row for each operation and a column for each format and device."""
    places = list(dict.fromkeys((one.dtype, one.device) for one in tried))
    operations = list(dict.fromkeys(one.operation for one in tried))
    by_name = {(one.operation, one.dtype, one.device): one for one in tried}
    columns = [Rows(operations).column("operation", str, "word")]
    for dtype, device in places:
        column = Rows([by_name[name, dtype, device] for name in operations]).column
        heading = f"{dtype} ({device})"
        columns.append(column(heading, partial(_outcome, letters=letters), "verdict", tone=_outcome_tone))
    return [Heading(f"Operations on tensors, as tried with torch {torch}"), Table(tuple(columns))]


def _outcome(one: Tried, letters: Letters) -> str:
    if one.reason is not None:
        return letters.refer(one.outcome, _shared(one.reason))
    return f"{'' if one.outcome == 'runs' else one.outcome + ' '}-> {one.gives}"


def _shared(reason: str) -> str:
    """Return torch's reason without the format's name, which the column has, so that one note serves all formats."""
    return DTYPE_NAME.sub("it", reason)


def _outcome_tone(one: Tried) -> Tone:
    return "" if one.outcome == "runs" else "bad"


def _tone(cell: str) -> Tone:
    return "bad" if cell.lstrip("-") in LOST else ""


def notes(report: FormatReport) -> list[str]:
    """Say what the tables cannot: where casts were measured, how they round, and what the marks mean."""
    said = []
    if report.casts or not (report.bits or report.tried or report.blocks):
        said += _of_limits(report)
    if any(one.by == "definition" for one in report.casts):
        said.append(f"{BY_DEFINITION} by the format's definition, to nearest, ties to even, saturating: {NO_CAST}.")
    if report.bits:
        said.append(BITS)
    if any(one.saturated for one in report.bits):
        said.append(f"{SATURATES} beyond max, where the format has no inf: shown as max; a cast may give nan instead.")
    if any(one.becomes is None for one in report.bits):
        said.append(f"{NOTHING} the format has no bits for it.")
    if report.tried:
        said += [TRIED, *([EMULATED_ON_CPU] if any(one.device == "cpu" for one in report.tried) else [])]
    if any(one.reach.name.endswith(PACKED) for one in report.formats) and (said and not report.tried):
        said.append(f"{PACKED}: two values to a byte; the numbers are of one.")
    return said


def _of_limits(report: FormatReport) -> list[str]:
    said = ["s+e+m: bits of sign, exponent and mantissa. eps: the step from 1 to the next value."]
    measured = [one for one in report.formats if one.behaviour]
    if measured:
        said += [
            f"Casts as measured with torch {report.torch} on this {(report.device or '').upper()}, from float32.",
            f"They round {_roundings(measured)}.",
            "above max: tried with twice max, or with the largest float32 where that is less.",
        ]
    if report.torch is None:
        said.append(f"By definition. {ASK_TORCH}")
    return said


def _roundings(measured: Sequence[Format]) -> str:
    """Return the rounding that most formats share, and the formats with another one."""

    def rounding(one: Format) -> str:
        return one.behaviour.rounding if one.behaviour else ""

    shared = [(how, [one.reach.name for one in of]) for how, of in groupby(sorted(measured, key=rounding), rounding)]
    (most, _), *others = sorted(shared, key=lambda one: -len(one[1]))
    return "; ".join([most, *(f"{', '.join(names)}: {how}" for how, names in others)])
