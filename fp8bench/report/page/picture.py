"""A chart as a file of its own: .svg as in a page, .png and .pdf through matplotlib, from the same drawing."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.report import paper
from fp8bench.report.page.charts import FILE, Chart
from fp8bench.report.page.drawing import LIGHT, Label, Line, Mark, Rect, style, svg
from fp8bench.schema.plain_text import inert

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
MARGIN = 16
PIXELS_AN_INCH = (FILE + 2 * MARGIN) / paper.WIDTH_IN
POINTS_A_PIXEL = 72 / PIXELS_AN_INCH
ANCHORS: dict[str, Any] = {"start": "left", "middle": "center", "end": "right"}


def svg_text(chart: Chart) -> str:
    """A file that needs no style sheet beside it."""
    return f"{svg(chart.draw(FILE), chart.name, style(LIGHT))}\n"


def draw(chart: Chart, path: Path) -> None:
    """A .png or .pdf, with the chart's title on top. Raises UsageError without matplotlib, RunFailed where path cannot
    be written.
    """
    drawing = chart.draw(FILE)
    top = 34
    height = drawing.height + top + 2 * MARGIN
    with paper.figure(height / PIXELS_AN_INCH, path) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(-MARGIN, FILE + MARGIN)
        axes.set_ylim(drawing.height + MARGIN, -top - MARGIN)
        for place, mark in enumerate((Label(0, -top + 14, drawing.title, size=16, bold=True), *drawing.marks), start=1):
            _put(axes, mark, place)


def _put(axes: "Axes", mark: Mark, order: int) -> None:
    """order: what is put later lies above."""
    from matplotlib.patches import Circle, Rectangle

    if isinstance(mark, Label):
        axes.text(
            mark.x,
            mark.y,
            inert(mark.text),
            color=LIGHT[mark.look],
            fontsize=mark.size * POINTS_A_PIXEL * 0.92,
            fontweight="bold" if mark.bold else "normal",
            ha=ANCHORS[mark.anchor],
            va="baseline",
            parse_math=False,
            zorder=order,
        )
    elif isinstance(mark, Line):
        dashes: Any = (0, (4, 3)) if mark.dashed else "solid"
        width = mark.width * POINTS_A_PIXEL
        axes.plot(
            (mark.x1, mark.x2),
            (mark.y1, mark.y2),
            color=LIGHT[mark.look],
            linewidth=width,
            linestyle=dashes,
            zorder=order,
        )
    elif isinstance(mark, Rect):
        edge = LIGHT[mark.edge] if mark.edge else "none"
        axes.add_patch(
            Rectangle(
                (mark.x, mark.y),
                mark.width,
                mark.height,
                facecolor=LIGHT[mark.look],
                edgecolor=edge,
                linewidth=0.8,
                zorder=order,
            )
        )
    else:
        edge = LIGHT[mark.edge] if mark.edge else "none"
        for point in mark.points:
            alpha = 1.0 if mark.edge else 0.4
            axes.add_patch(
                Circle(
                    point,
                    mark.radius,
                    facecolor=LIGHT[mark.look],
                    edgecolor=edge,
                    alpha=alpha,
                    linewidth=1,
                    zorder=order,
                )
            )
