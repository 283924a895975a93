"""GEMMs drawn as TFLOP/s: a sweep as lines over the size, broken ones for the times with casts; everything else as
bars, a group for each GEMM. The table has the casts and the intervals.
"""

from pathlib import Path

from fp8bench.kinds.gemm.report import GemmReport
from fp8bench.schema.gemm import Casts, Precision
from fp8bench.tables import chart
from fp8bench.tables.chart import INK
from fp8bench.tables.written import rate

LINES: dict[Precision, str] = {
    "bf16": "#1f2328",
    "fp8-tensorwise": "#004b7a",
    "fp8-tensorwise-fast": "#4a98cc",
    "fp8-rowwise": "#a34700",
    "fp8-rowwise-fast": "#c98500",
}


BAR = 0.8
"""The height of a GEMM's bars together, of the distance between two GEMMs."""


def draw(report: GemmReport, path: Path) -> None:
    """Draw a sweep as lines, everything else as bars. Raises as `chart.figure` does."""
    where = f"{report.what}, {report.device_name or f'CPU of {report.instance}'}"
    if report.is_sweep:
        # The cheaper casts of those that were timed.
        casts: Casts = "compiled" if any(row.way("compiled") for row in report.rows) else "eager"
        lines = [line for precision in LINES for line in _lines(report, precision, casts)]
        title = f"TFLOP/s by size: {where}; broken: with {casts} casts"
        chart.lines(path, title, lines, ("M = N = K", "TFLOP/s"))
        return
    products = list(dict.fromkeys((row.product, row.shape) for row in report.rows))
    precisions = [name for name in LINES if any(row.precision == name for row in report.rows)]
    height = BAR / len(precisions)
    with chart.figure(1.5 + (0.2 + 0.17 * len(precisions)) * len(products), path) as figure:
        axes = figure.add_subplot()
        for row in report.rows:
            place = products.index((row.product, row.shape)) - BAR / 2 + height * precisions.index(row.precision)
            long = row.tflops or 0.0
            axes.barh(place, long, height * 0.9, align="edge", color=LINES[row.precision])
            said = row.status if row.tflops is None else rate(row.tflops)
            if row.emulated:
                said += " (emulated)"
            elif row.speedup_vs_bf16 and row.precision != "bf16":
                said += f", {row.speedup_vs_bf16:.2f}x"
            axes.text(long, place + height * 0.45, f" {said}", va="center", fontsize=8, color=INK)
        names = [str(shape) if product == str(shape) else f"{product}\n{shape}" for product, shape in products]
        axes.set_yticks(range(len(products)), names, fontsize=8, color=INK)
        # A GEMM that stays bf16 has one bar, above the middle of its place.
        axes.set_ylim(len(products) - 0.5, -0.5)
        axes.margins(x=0.15)
        chart.plain(axes, "TFLOP/s, and the speed-up over bf16 with the casts free")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        chart.title(figure, f"TFLOP/s of GEMMs: {where}")
        entries = [{"facecolor": LINES[name], "label": name} for name in precisions]
        chart.legend(figure, entries, min(3, len(entries)))


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
