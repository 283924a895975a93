"""Number formats as a document, and as number lines: what they can hold.

Tables show limits with 6 digits and what a value becomes with 8, which tells any two values of a format of 16 bits or
fewer apart. Machines get every number unrounded, and inf and nan as strings, for which json's numbers have no words.

The figure has the positive values of each format on a logarithmic axis, one row a format, in two
panels, since formats reach over 84 decades and fp8 over 10. Above, the reach of every format, as a band
from its smallest value to its max. Below, a close-up where the formats of 8 bits and fewer have every value as a tick.
Subnormal values are paler and less tall: below where they begin, each binade has half the values of the one above it.
Values that were cast are lines across all rows; in the close-up, what each format makes of them is a diamond in its
row. A negative value is marked where its magnitude is, and what has no place on the axis is named below it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.report import blocks as block_scales
from fp8bench.report import paper
from fp8bench.report.document import NOTHING, Document, Figure, Heading, Letters, Note, Rows, Table, Tone, blocks
from fp8bench.report.paper import FAINT, GRID, INK
from fp8bench.report.written import number
from fp8bench.schema.formats import Bits, CastBehaviour, Format, FormatReport, Reach, Rounded, Tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
EMULATED_ON_CPU = "A CPU's result is computed in float32 and rounded: it is no sign that fp8 units would run it."


def document(report: FormatReport) -> Document:
    """What was asked for: bits, what was tried, block scales; and unless that alone was, the formats' limits. What
    overflows to inf or nan is marked as bad.
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
    """A format in one piece. Its values one by one are for drawing."""
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
    """What overflow becomes only where this torch was asked."""
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
    """The bits as they lie in memory, apart where their meaning changes."""
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
    """`1.625 x 2^-2`, with its sign."""
    if one.significand is None or one.becomes is None:
        return NOTHING
    sign = "-" if math.copysign(1.0, one.becomes) < 0 else ""
    return f"{sign}{one.significand:.7g} x 2^{one.power}"


def _tried(tried: Sequence[Tried], torch: str, letters: Letters) -> list[Heading | Table]:
    """A row an operation; a column a format and device."""
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
        return letters.mark(one.outcome, _shared(one.reason))
    return f"{'' if one.outcome == 'runs' else one.outcome + ' '}-> {one.gives}"


def _shared(reason: str) -> str:
    """torch's reason without the format's name, which the column has: one note then serves all formats."""
    return DTYPE_NAME.sub("it", reason)


def _outcome_tone(one: Tried) -> Tone:
    return "" if one.outcome == "runs" else "bad"


def _tone(cell: str) -> Tone:
    return "bad" if cell.lstrip("-") in LOST else ""


def notes(report: FormatReport) -> list[str]:
    """What the tables cannot say: where casts were measured, how they round, and what the marks mean."""
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
    """The rounding that most share, and which formats have another."""

    def rounding(one: Format) -> str:
        return one.behaviour.rounding if one.behaviour else ""

    shared = [(how, [one.reach.name for one in of]) for how, of in groupby(sorted(measured, key=rounding), rounding)]
    (most, _), *others = sorted(shared, key=lambda one: -len(one[1]))
    return "; ".join([most, *(f"{', '.join(names)}: {how}" for how, names in others)])


ROW_IN = 0.34
PANEL_IN = 0.9
"""Height of a panel beside its rows: title, labels and the numbers of the axis."""

AROUND_IN = 0.55
"""Height beside the panels: the legend, and what the axis is."""

WIDE_DECADES = 20
"""A format that spans more does not stretch the close-up."""

FEW_DECADES = 3
"""An axis that spans less has powers of two as its numbers: those of ten would be too few."""

MARGIN = 1.6
"""Factor by which an axis goes on beyond the outermost value."""

NORMAL = "#0072B2"
SUBNORMAL = "#56B4E9"
CAST = "#D55E00"
TALL, SHORT = 0.36, 0.2
"""Half the height of a normal value's band or tick, and of a subnormal's, in rows."""

DASHES: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 0.9}
DIAMOND: dict[str, Any] = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 5.5,
    "markerfacecolor": "white",
    "markeredgewidth": 1.3,
}

CHARACTER = 0.0105
"""Share of an axis's width that a character of a label needs."""

LABEL_PT = 10
LEVELS = 3
"""Lines for labels, LABEL_PT high each; a label that fits on none is omitted."""

TITLE_PT = 8
"""From the labels to the title."""


@dataclass(frozen=True)
class Panel:
    """Rows over one axis from limits[0] to limits[1]: as bands, or with every value as a tick."""

    title: str
    rows: tuple[Reach, ...]
    limits: tuple[float, float]
    every_value: bool

    def has_place(self, value: float) -> bool:
        """Whether a value or its negative lies on the axis; no axis has zero, inf or nan."""
        return self.limits[0] <= abs(value) <= self.limits[1]


def number_lines(report: FormatReport, path: Path) -> None:
    """Raises UsageError as require_drawable, RunFailed where path cannot be written."""
    shown = panels([one.reach for one in report.formats])
    heights = [PANEL_IN + ROW_IN * len(panel.rows) for panel in shown]
    with paper.figure(AROUND_IN + sum(heights), path) as figure:
        every_axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(every_axes, shown, strict=True):
            _draw(axes, panel, report.casts)
        every_axes[-1].set_xlabel(_below(shown, report.casts), fontsize=9, color=FAINT)
        _legend(figure, shown, report.casts)


def panels(formats: Sequence[Reach]) -> list[Panel]:
    """The close-up, if any format has its values listed; before it the reach of all, unless the close-up has it."""
    ticked = tuple(one for one in formats if one.positive)
    narrow = [one for one in ticked if math.log10(one.max / _smallest(one)) < WIDE_DECADES]
    close_up = [Panel("every value, where 8 bits or fewer", ticked, _ends(narrow or ticked), True)] if ticked else []
    if len(ticked) == len(formats) and len(narrow) in (0, len(formats)):
        return close_up
    return [Panel("from the smallest value to max", tuple(formats), _ends(formats), False), *close_up]


def _ends(formats: Sequence[Reach]) -> tuple[float, float]:
    return min(map(_smallest, formats)) / MARGIN, max(one.max for one in formats) * MARGIN


def _smallest(one: Reach) -> float:
    return one.smallest_subnormal or one.smallest_normal


def _draw(axes: "Axes", panel: Panel, casts: Sequence[Rounded]) -> None:
    for place, one in enumerate(panel.rows):
        (_ticks if panel.every_value else _band)(axes, place, one, panel)
    _axis(axes, panel)
    labels = _cast_values(axes, panel, casts)
    if panel.every_value:
        _becomes(axes, panel, casts)
    above = TITLE_PT + LABEL_PT * max((level + 1 for _, level in labels), default=0)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK, pad=above)


def _band(axes: "Axes", place: int, one: Reach, panel: Panel) -> None:
    if one.smallest_subnormal:
        subnormal = one.smallest_normal - one.smallest_subnormal
        axes.barh(place, subnormal, left=one.smallest_subnormal, height=2 * SHORT, color=SUBNORMAL, linewidth=0)
    axes.barh(
        place, one.max - one.smallest_normal, left=one.smallest_normal, height=2 * TALL, color=NORMAL, linewidth=0
    )


def _ticks(axes: "Axes", place: int, one: Reach, panel: Panel) -> None:
    values = [value for value in one.positive or () if panel.has_place(value)]
    normal = [value for value in values if value >= one.smallest_normal]
    subnormal = [value for value in values if value < one.smallest_normal]
    axes.vlines(subnormal, place - SHORT, place + SHORT, colors=SUBNORMAL, linewidth=1.4)
    axes.vlines(normal, place - TALL, place + TALL, colors=NORMAL, linewidth=0.8)


def _axis(axes: "Axes", panel: Panel) -> None:
    low, high = panel.limits
    few = math.log10(high / low) < FEW_DECADES
    axes.set_xscale("log", base=2 if few else 10)
    axes.set_xlim(low, high)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.rows)), [one.name for one in panel.rows], fontsize=9, color=INK)
    axes.tick_params(axis="x", which="both", labelsize=9, labelcolor=FAINT, color=GRID)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.grid(True, which="major", color=GRID, linewidth=0.6)
    paper.frame(axes, "bottom")


def _cast_values(axes: "Axes", panel: Panel, casts: Sequence[Rounded]) -> list[tuple[float, int]]:
    """A line a value, and above the rows its label. Returns the labels, as `levels` does."""
    on_axis = {one.value for one in casts if panel.has_place(one.value)}
    for magnitude in sorted(map(abs, on_axis)):
        axes.axvline(magnitude, color=CAST, zorder=3, **DASHES)
    labels = levels(sorted(on_axis, key=lambda value: (abs(value), value)), panel.limits)
    for value, level in labels:
        axes.annotate(
            _label(value),
            (abs(value), 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 2 + LABEL_PT * level),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=CAST,
        )
    return labels


def levels(values: Sequence[float], limits: tuple[float, float]) -> list[tuple[float, int]]:
    """On which line the label of each value goes, so that none lies over another; a value without room is omitted.

    values: by magnitude, all within limits.
    """
    ends = [-math.inf] * LEVELS
    placed = []
    for value in values:
        at = math.log(abs(value) / limits[0]) / math.log(limits[1] / limits[0])
        half = CHARACTER * (len(_label(value)) + 1) / 2
        level = next((level for level, end in enumerate(ends) if at - half >= end), None)
        if level is not None:
            ends[level] = at + half
            placed.append((value, level))
    return placed


def _label(value: float) -> str:
    return f"{value:.6g}"


def _becomes(axes: "Axes", panel: Panel, casts: Sequence[Rounded]) -> None:
    places = {one.name: place for place, one in enumerate(panel.rows)}
    held = [(abs(one.becomes), places[one.dtype]) for one in casts if one.dtype in places and one.becomes is not None]
    on_axis = [(magnitude, place) for magnitude, place in held if panel.has_place(magnitude)]
    magnitudes, rows = [magnitude for magnitude, _ in on_axis], [place for _, place in on_axis]
    axes.plot(magnitudes, rows, color=CAST, zorder=4, **DIAMOND)


def _below(shown: Sequence[Panel], casts: Sequence[Rounded]) -> str:
    """What the axis is, and which values have no place on any."""
    absent = [_label(one.value) for one in casts if not any(panel.has_place(one.value) for panel in shown)]
    return "magnitude" + (f"; not on the axis: {', '.join(dict.fromkeys(absent))}" if absent else "")


def _legend(figure: Any, shown: Sequence[Panel], casts: Sequence[Rounded]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=NORMAL, label="normal"), Patch(color=SUBNORMAL, label="subnormal")]
    if casts:
        handles.append(Line2D([], [], color=CAST, label="value that is cast", **DASHES))
    if casts and any(panel.every_value for panel in shown):
        handles.append(Line2D([], [], color=CAST, label="what it becomes", **DIAMOND))
    paper.legend(figure, handles, len(handles), handlelength=1.6, columnspacing=1.8)
