"""Collectives drawn: bus bandwidth over the array's size on logarithmic axes. Each operation has one colour, with full
lines for bf16 and broken ones for fp32. A horizontal line shows the datasheet's figure for the link, if it is known.
"""

from pathlib import Path

from fp8bench.kinds.collectives.rows import CollectivesReport, size_of
from fp8bench.schema.collectives import Dtype, Operation
from fp8bench.tables import chart
from fp8bench.tables.chart import FAINT, INK

HEIGHT_IN = 4.6
COLOURS: dict[Operation, str] = {"all-reduce": "#0072B2", "all-gather": "#D55E00", "reduce-scatter": "#009E73"}
STYLES: dict[Dtype, object] = {"bf16": "-", "fp32": (0, (4, 2))}


def draw(report: CollectivesReport, path: Path) -> None:
    """Draw the figure. Raises UsageError as require_drawable does, and RunFailed if path cannot be written."""
    with chart.figure(HEIGHT_IN, path) as figure:
        axes = figure.add_subplot()
        for operation, dtype in dict.fromkeys((row.operation, row.dtype) for row in report.rows):
            mine = [row for row in report.rows if (row.operation, row.dtype) == (operation, dtype) and row.bus_gb_s]
            axes.plot(
                [row.size_bytes for row in mine],
                [row.bus_gb_s or 0.0 for row in mine],
                color=COLOURS[operation],
                linestyle=STYLES[dtype],
                marker="o",
                markersize=3.5,
                linewidth=1.8,
                label=f"{operation}, {dtype}",
            )
        if report.link_gb_s:
            axes.axhline(report.link_gb_s, color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)), label="NVLink, datasheet")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda size, _place: size_of(size))
        axes.yaxis.set_major_formatter("{x:g}")
        chart.plain(axes, "size of the whole array", "bus bandwidth, GB/s")
        axes.legend(fontsize=9, frameon=False, labelcolor=INK, handlelength=3.4)
        chart.title(figure, f"Collectives of {report.where}")
