"""GEMMs drawn: a sweep as TFLOP/s over the size, with broken lines for the times with casts; all else as a heat map
with a row for each GEMM and a column for each precision. The upper part of a cell has TFLOP/s and the speed-up over
bf16 with the casts free, the lower part that with casts, each in the colour of its speed-up: blue if fp8 is faster,
orange if slower.
"""

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

from fp8bench.kinds.gemm.report import GemmReport, GemmRow
from fp8bench.schema.gemm import Casts, Precision
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, INK
from fp8bench.tables.written import rate

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

EVEN, FASTER, SLOWER = "#ffffff", "#2f8fc9", "#e8853d"
PLAIN = "#eceef1"
"""The colour of cells without a speed-up: bf16's own, and GEMMs that did not run."""

FULL_COLOUR = 2.0
"""The speed-up, or its reciprocal, with the full colour: fp8's peak is twice bf16's on every GPU so far."""

EDGE, UPPER = 0.46, 0.58
"""Half a cell's height, in rows, and the share of a cell that its upper part takes."""

LINES: dict[Precision, str] = {
    "bf16": "#1f2328",
    "fp8-tensorwise": "#004b7a",
    "fp8-tensorwise-fast": "#4a98cc",
    "fp8-rowwise": "#a34700",
    "fp8-rowwise-fast": "#c98500",
}


def draw(report: GemmReport, path: Path) -> None:
    """Draw a sweep as lines, everything else as a heat map. Raises as `chart.figure` does."""
    where = f"{report.what}, {report.device_name or f'CPU of {report.instance}'}"
    # The cheaper casts of those that were timed.
    casts: Casts = "compiled" if any(row.way("compiled") for row in report.rows) else "eager"
    if report.is_sweep:
        lines = [line for precision in LINES for line in _lines(report, precision, casts)]
        title = f"TFLOP/s by size: {where}; broken: with {casts} casts"
        chart.lines(path, title, lines, ("M = N = K", "TFLOP/s"))
        return
    products = list(dict.fromkeys((row.product, row.shape) for row in report.rows))
    with chart.figure(1.45 + 0.46 * len(products), path) as figure:
        _heat_map(figure.add_subplot(), report.rows, products, casts)
        chart.title(figure, f"TFLOP/s of GEMMs, and fp8's speed-up over bf16: {where}")


def _lines(report: GemmReport, precision: Precision, casts: Casts) -> list[chart.Line]:
    mine = sorted((row for row in report.rows if row.precision == precision and row.tflops), key=lambda row: row.m)
    lines = []
    ways: tuple[tuple[Casts, bool], ...] = (("none", False), (casts, True))
    for way, broken in ways:
        timed = ((row, row.way(way)) for row in mine if row.shape.is_square)
        points = [(row.m, row.shape.tflops(one.time_s)) for row, one in timed if one and one.time_s]
        if points:
            lines.append(chart.Line(precision + (f", {way} casts" if broken else ""), points, LINES[precision], broken))
    return lines


def _heat_map(axes: "Axes", rows: Sequence[GemmRow], products: Sequence[tuple[str, object]], casts: Casts) -> None:
    precisions = [name for name in LINES if any(row.precision == name for row in rows)]
    for row in rows:
        _cell(axes, precisions.index(row.precision), products.index((row.product, row.shape)), row, casts)
    axes.set_xlim(-0.5, len(precisions) - 0.5)
    axes.set_ylim(len(products) - 0.5, -0.5)
    axes.set_xticks(range(len(precisions)), [name.replace("-", "\n", 1) for name in precisions], fontsize=9, color=INK)
    axes.xaxis.tick_top()
    names = [str(shape) if product == str(shape) else f"{product}\n{shape}" for product, shape in products]
    axes.set_yticks(range(len(products)), names, fontsize=8, color=INK)
    axes.tick_params(length=0)
    chart.frame(axes)
    with_casts = f"; below: the speed-up with {casts} casts" if any(row.with_casts for row in rows) else ""
    axes.set_xlabel(
        f"TFLOP/s, and the speed-up over bf16 with the casts free{with_casts}\nno cell: not measured",
        fontsize=8.5,
        color=FAINT,
    )
    keys = (
        (FASTER, f"{FULL_COLOUR:g}x and more"),
        (EVEN, "as fast as bf16"),
        (SLOWER, f"{1 / FULL_COLOUR:g}x and less"),
        (PLAIN, "no speed-up: bf16, or no time"),
    )
    entries = [{"facecolor": colour, "edgecolor": FAINT, "label": name} for colour, name in keys]
    chart.legend(axes.figure, entries, len(entries), handlelength=1.2, handleheight=1.0)


def _cell(axes: "Axes", column: int, place: int, row: GemmRow, casts: Casts) -> None:
    speedup = None if row.precision == "bf16" else row.speedup_vs_bf16
    said = row.status if row.tflops is None else rate(row.tflops)
    if row.tflops is not None and row.emulated:
        said += " (emulated)"
    elif speedup is not None:
        said += f"  {speedup:.2f}x"
    way = next((one for one in row.with_casts if one.casts == casts), None)
    below = way.speedup_vs_bf16 if way else None
    upper = UPPER if below is not None else 1.0
    _field(axes, column, place - EDGE, upper * 2 * EDGE, said, speedup)
    if below is not None:
        _field(axes, column, place - EDGE + upper * 2 * EDGE, (1 - upper) * 2 * EDGE, f"{below:.2f}x", below)


def _field(axes: "Axes", column: int, top: float, height: float, text: str, speedup: float | None) -> None:
    colour = PLAIN
    if speedup is not None:
        strength = min(1.0, abs(log(speedup)) / log(FULL_COLOUR))
        colour = chart.blend(EVEN, FASTER if speedup > 1 else SLOWER, strength)
    chart.box(axes, column - 0.485, top, 0.97, height, colour)
    axes.text(column, top + height / 2, text, ha="center", va="center", fontsize=8.5, color=chart.on(colour))
