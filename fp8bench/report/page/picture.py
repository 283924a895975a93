"""A chart as a file of its own: .svg as in a page, .png and .pdf through matplotlib, from the same drawing."""

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.report import paper
from fp8bench.report.page.drawing import FILE, LIGHT, Chart, Drawing, Element, Label, Line, Rect, moved, style, svg
from fp8bench.schema.errors import inert

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 16
CAPTION_CHARACTERS = 112
"""Characters in a line of the caption."""

PIXELS_AN_INCH = (FILE + 2 * MARGIN) / paper.WIDTH_IN
POINTS_A_PIXEL = 72 / PIXELS_AN_INCH
ANCHORS: dict[str, Any] = {"start": "left", "middle": "center", "end": "right"}


def titled(chart: Chart) -> Drawing:
    """Return the drawing on paper, below its title and caption, with a margin on all sides."""
    drawing = chart.draw(FILE)
    lines = textwrap.wrap(inert(chart.caption), CAPTION_CHARACTERS)
    above = MARGIN + 28 + 17 * len(lines)
    width, height = FILE + 2 * MARGIN, above + drawing.height + MARGIN
    head: list[Element] = [
        Rect(0, 0, width, height, "paper"),
        Label(MARGIN, MARGIN + 14, drawing.title, size=16, bold=True),
        *(Label(MARGIN, MARGIN + 34 + 17 * place, line, "faint", size=12) for place, line in enumerate(lines)),
    ]
    return replace(
        drawing,
        width=width,
        height=height,
        elements=(*head, *(moved(element, MARGIN, above) for element in drawing.elements)),
    )


def svg_text(chart: Chart) -> str:
    return f"{svg(titled(chart), chart.name, style(LIGHT))}\n"


def draw(chart: Chart, path: Path) -> None:
    """Write a .png or .pdf. Raises UsageError without matplotlib, and RunFailed if path cannot be written."""
    drawing = titled(chart)
    with paper.figure(drawing.height / PIXELS_AN_INCH, path) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        for place, element in enumerate(drawing.elements, start=1):
            _put(axes, element, place)


def _put(axes: "Axes", element: Element, order: int) -> None:
    """Draw an element. order: elements with a higher order are on top."""
    from matplotlib.patches import Circle, Rectangle

    colour = LIGHT[element.look]
    if isinstance(element, Label):
        size, weight = element.size * POINTS_A_PIXEL * 0.92, "bold" if element.bold else "normal"
        place: Any = {"ha": ANCHORS[element.anchor], "va": "baseline", "parse_math": False, "zorder": order}
        axes.text(element.x, element.y, inert(element.text), color=colour, fontsize=size, fontweight=weight, **place)
        return
    if isinstance(element, Line):
        stroke: Any = {
            "linewidth": element.width * POINTS_A_PIXEL,
            "linestyle": (0, (4, 3)) if element.dashed else "solid",
        }
        axes.plot((element.x1, element.x2), (element.y1, element.y2), color=colour, zorder=order, **stroke)
        return
    fill: Any = {"facecolor": colour, "edgecolor": LIGHT[element.edge] if element.edge else "none", "zorder": order}
    if isinstance(element, Rect):
        axes.add_patch(Rectangle((element.x, element.y), element.width, element.height, linewidth=0.8, **fill))
        return
    for point in element.points:
        axes.add_patch(Circle(point, element.radius, alpha=1.0 if element.edge else 0.4, linewidth=1, **fill))
