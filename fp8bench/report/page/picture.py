"""A chart as a file of its own: .svg as in a page, .png and .pdf through matplotlib, from the same drawing."""

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.report import paper
from fp8bench.report.page.drawing import FILE, LIGHT, Chart, Drawing, Label, Line, Mark, Rect, moved, style, svg
from fp8bench.schema.errors import inert

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 16
CAPTION_CHARACTERS = 112
"""In a line."""

PIXELS_AN_INCH = (FILE + 2 * MARGIN) / paper.WIDTH_IN
POINTS_A_PIXEL = 72 / PIXELS_AN_INCH
ANCHORS: dict[str, Any] = {"start": "left", "middle": "center", "end": "right"}


def titled(chart: Chart) -> Drawing:
    """On paper, below its title and its caption, with a margin around all."""
    drawing = chart.draw(FILE)
    lines = textwrap.wrap(inert(chart.caption), CAPTION_CHARACTERS)
    above = MARGIN + 28 + 17 * len(lines)
    width, height = FILE + 2 * MARGIN, above + drawing.height + MARGIN
    head: list[Mark] = [
        Rect(0, 0, width, height, "paper"),
        Label(MARGIN, MARGIN + 14, drawing.title, size=16, bold=True),
        *(Label(MARGIN, MARGIN + 34 + 17 * place, line, "faint", size=12) for place, line in enumerate(lines)),
    ]
    return replace(
        drawing, width=width, height=height, marks=(*head, *(moved(mark, MARGIN, above) for mark in drawing.marks))
    )


def svg_text(chart: Chart) -> str:
    return f"{svg(titled(chart), chart.name, style(LIGHT))}\n"


def draw(chart: Chart, path: Path) -> None:
    """A .png or .pdf. Raises UsageError without matplotlib, RunFailed where path cannot be written."""
    drawing = titled(chart)
    with paper.figure(drawing.height / PIXELS_AN_INCH, path) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        for place, mark in enumerate(drawing.marks, start=1):
            _put(axes, mark, place)


def _put(axes: "Axes", mark: Mark, order: int) -> None:
    """order: what is put later lies above."""
    from matplotlib.patches import Circle, Rectangle

    colour = LIGHT[mark.look]
    if isinstance(mark, Label):
        size, weight = mark.size * POINTS_A_PIXEL * 0.92, "bold" if mark.bold else "normal"
        place: Any = {"ha": ANCHORS[mark.anchor], "va": "baseline", "parse_math": False, "zorder": order}
        axes.text(mark.x, mark.y, inert(mark.text), color=colour, fontsize=size, fontweight=weight, **place)
        return
    if isinstance(mark, Line):
        stroke: Any = {"linewidth": mark.width * POINTS_A_PIXEL, "linestyle": (0, (4, 3)) if mark.dashed else "solid"}
        axes.plot((mark.x1, mark.x2), (mark.y1, mark.y2), color=colour, zorder=order, **stroke)
        return
    fill: Any = {"facecolor": colour, "edgecolor": LIGHT[mark.edge] if mark.edge else "none", "zorder": order}
    if isinstance(mark, Rect):
        axes.add_patch(Rectangle((mark.x, mark.y), mark.width, mark.height, linewidth=0.8, **fill))
        return
    for point in mark.points:
        axes.add_patch(Circle(point, mark.radius, alpha=1.0 if mark.edge else 0.4, linewidth=1, **fill))
