"""GEMMs drawn.

A workload's GEMMs, and single shapes, are a heat map with a row for each GEMM and a column for each precision. The
upper part of a cell shows the TFLOP/s and the speed-up over bf16 with the casts free. The lower part shows the speed-up
with casts: compiled casts if they were timed, else eager ones. Each part has the colour of its speed-up: blue if fp8 is
faster, orange if it is slower, white if they are equal.

A sweep is a plot of TFLOP/s over the size, on a logarithmic axis, with one colour for each precision: a full line with
the casts free, a broken one with casts. fp8 begins to pay where its line leaves bf16's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fp8bench.kinds.gemm.rows import GemmReport, GemmRow, WithCasts
from fp8bench.schema.gemm import Casts, Precision
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, GRID, INK
from fp8bench.tables.written import rate

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

ROW_IN = 0.46
AROUND_IN = 1.35
LINES_IN = 4.6
EVEN = "#ffffff"
FASTER, SLOWER = "#2f8fc9", "#e8853d"
PLAIN = "#f3f4f6"
"""The colour of cells without a speed-up: bf16's own, and GEMMs that did not run."""

FULL_COLOUR = 2.0
"""The speed-up, or its reciprocal, with the full colour: fp8's peak is twice bf16's on every GPU so far."""

EDGE = 0.46
"""Half a cell's height, in rows."""

UPPER = 0.58
"""The share of a cell that its upper part takes."""

HEAT_MAP_KEY = (
    "upper part: TFLOP/s, and the speed-up over bf16 with the casts free; lower part: the speed-up with {casts} casts\n"
    "empty: not measured"
)

LINES: dict[Precision, str] = {
    "bf16": "#1f2328",
    "fp8-tensorwise": "#0072B2",
    "fp8-tensorwise-fast": "#56B4E9",
    "fp8-rowwise": "#D55E00",
    "fp8-rowwise-fast": "#E69F00",
}


def draw(report: GemmReport, path: Path) -> None:
    """Draw a sweep as lines, everything else as a heat map. Raises UsageError as require_drawable does, and RunFailed
    if path cannot be written.
    """
    height = LINES_IN if report.is_sweep else AROUND_IN + ROW_IN * len(_products(report))
    with chart.figure(height, path) as figure:
        axes = figure.add_subplot()
        if report.is_sweep:
            _lines(axes, report)
        else:
            _heat_map(axes, report)
        where = report.device_name or f"CPU of {report.instance}"
        what = "TFLOP/s by size" if report.is_sweep else "TFLOP/s of GEMMs, and fp8's speed-up over bf16"
        chart.title(figure, f"{what}: {report.what}, {where}")


def _products(report: GemmReport) -> list[tuple[str, str]]:
    """Return (product, shape) of each row of the heat map."""
    return list(dict.fromkeys((row.product, row.shape) for row in report.rows))


def _precisions(rows: Sequence[GemmRow]) -> list[Precision]:
    return [name for name in LINES if any(row.precision == name for row in rows)]


def _casts(rows: Sequence[GemmRow]) -> Casts:
    """Return the casts that are drawn: the cheaper of those that were timed."""
    return "compiled" if any(row.way("compiled") for row in rows) else "eager"


def _heat_map(axes: "Axes", report: GemmReport) -> None:
    products, precisions, casts = _products(report), _precisions(report.rows), _casts(report.rows)
    for row in report.rows:
        place = products.index((row.product, row.shape))
        _cell(axes, precisions.index(row.precision), place, row, row.way(casts))
    axes.set_xlim(-0.5, len(precisions) - 0.5)
    axes.set_ylim(len(products) - 0.5, -0.5)
    axes.set_xticks(range(len(precisions)), [name.replace("-", "\n", 1) for name in precisions], fontsize=9, color=INK)
    axes.xaxis.tick_top()
    names = [shape if product == shape else f"{product}\n{shape}" for product, shape in products]
    axes.set_yticks(range(len(products)), names, fontsize=8, color=INK)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(HEAT_MAP_KEY.format(casts=casts), fontsize=8.5, color=FAINT)
    keys = [
        (FASTER, f"{FULL_COLOUR:g}x and more"),
        (EVEN, "as fast as bf16"),
        (SLOWER, f"{1 / FULL_COLOUR:g}x and less"),
    ]
    handles = [dict(facecolor=colour, edgecolor=GRID, label=name) for colour, name in keys]
    chart.legend(axes.figure, handles, 3, handlelength=1.2, handleheight=1.0)


def _cell(axes: "Axes", column: int, place: int, row: GemmRow, way: WithCasts | None) -> None:
    """Draw the GEMM alone in the upper part and the speed-up with casts, if they were timed, in the lower part."""
    if row.tflops is None:
        _field(axes, column, place - EDGE, 2 * EDGE, row.status, None, 8.5)
        return
    speedup = None if row.precision == "bf16" else row.speedup_vs_bf16
    said = rate(row.tflops)
    if row.emulated:
        said += " (emulated)"
    elif speedup is not None:
        said += f"  {speedup:.2f}x"
    with_casts = way.speedup_vs_bf16 if way else None
    if with_casts is None:
        _field(axes, column, place - EDGE, 2 * EDGE, said, speedup, 9)
        return
    _field(axes, column, place - EDGE, UPPER * 2 * EDGE, said, speedup, 9)
    _field(axes, column, place - EDGE + UPPER * 2 * EDGE, (1 - UPPER) * 2 * EDGE, f"{with_casts:.2f}x", with_casts, 8)


def _field(axes: "Axes", column: int, top: float, height: float, text: str, speedup: float | None, size: float) -> None:
    colour = _colour(speedup)
    chart.box(axes, column - 0.485, top, 0.97, height, colour)
    axes.text(column, top + height / 2, text, ha="center", va="center", fontsize=size, color=chart.on(colour))


def _colour(speedup: float | None) -> str:
    """Return the colour of a cell: between EVEN and the full one by the logarithm of the speed-up."""
    from math import log

    if speedup is None:
        return PLAIN
    strength = min(1.0, abs(log(speedup)) / log(FULL_COLOUR))
    return chart.blend(EVEN, FASTER if speedup > 1 else SLOWER, strength)


def _lines(axes: "Axes", report: GemmReport) -> None:
    squares = sorted((row for row in report.rows if row.m == row.n == row.k), key=lambda row: row.m)
    casts = _casts(squares)
    for precision in _precisions(squares):
        mine = [row for row in squares if row.precision == precision and row.tflops is not None]
        colour = LINES[precision]
        sizes, rates = [row.m for row in mine], [row.tflops or 0.0 for row in mine]
        axes.plot(sizes, rates, color=colour, marker="o", markersize=3.5, linewidth=1.8, label=precision)
        cast = [(row.m, row.tflops * row.time_s / way.time_s) for row in mine if (way := row.way(casts))
                and row.tflops and row.time_s and way.time_s]  # fmt: skip
        if cast:
            axes.plot(*zip(*cast, strict=True), color=colour, linewidth=1.4, linestyle=(0, (4, 2)))
    sizes = sorted({row.m for row in squares})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, list(map(str, sizes)), fontsize=9)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    chart.plain(axes, "M = N = K", "TFLOP/s")
    axes.plot([], [], color=FAINT, linewidth=1.4, linestyle=(0, (4, 2)), label=f"broken: with {casts} casts")
    axes.legend(fontsize=9, frameon=False, labelcolor=INK)
