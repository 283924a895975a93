"""Every picture is drawn by matplotlib: here figures of studies as files, in `row_chart` charts of rows for a page.

A study describes a figure as data, and `draw` draws it: no other room knows matplotlib's axes.

A figure must be readable in a README at 900 pixels, and changes only with its numbers: the same numbers give the same
bytes. The colours follow Okabe and Ito, which colour-blind readers can distinguish; two of them are darker, so that
every line stands out from paper. Text is never read as mathematics: a record may hold anything.
"""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from fp8bench.schema.errors import UsageError, inert, writing
from fp8bench.schema.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes

OF_NOTHING: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata by suffix, without the day or the version of the software that drew the plot."""

SUFFIXES = tuple(OF_NOTHING)

INK, FAINT, GRID = "#1f2328", "#59636e", "#d8dee4"
MARKS = frozenset(("svg", "g", "path", "text", "defs", "use", "clipPath", "rect"))
"""The elements that an SVG in a page may have."""


@dataclass(frozen=True)
class Looks:
    """How a series looks. line: `-`, or matplotlib's offset and lengths of dashes; empty for none. width: in points.
    marker: matplotlib's letter for it; empty for none. hollow: the marker's inside is white.
    """

    colour: str
    line: str | tuple[int, tuple[float, ...]] = "-"
    width: float = 1.8
    marker: str = ""
    size: float = 5.5
    hollow: bool = False
    opacity: float = 1.0

    @property
    def drawn(self) -> dict[str, Any]:
        """The same as matplotlib's options of a line."""
        return {
            **{"color": self.colour, "linestyle": self.line, "linewidth": self.width, "alpha": self.opacity},
            **{"marker": self.marker, "markersize": self.size, "markeredgewidth": self.size / 5},
            "markerfacecolor": "white" if self.hollow else self.colour,
        }


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c0649a", "#b37700", "#4a98cc", "#7b61a8")
DASHES = ((5, 1.5), (1, 1), (5, 1, 1, 1), (3, 1, 1, 1, 1, 1), (7, 1), (2, 1), (7, 1, 1, 1))
PALETTE = (Looks(INK), *(Looks(colour, (0, dashes)) for colour, dashes in zip(COLOURS, DASHES, strict=True)))
"""Of the lines of one panel, in their order: no two differ by colour alone."""


@dataclass(frozen=True)
class Series:
    """A line, points, or both, over what was drawn before. points: (x, y); without any, it only has its place in the
    legend. label: in the legend, where each label stands once; empty for none. ends: of the interval of each y, None
    where it has none. stairs: each y holds from half a step before its x until half a step after it. bars: each point
    is the end of a bar from 0, beside which its text stands; those of several series lie below each other.
    """

    points: Sequence[tuple[float, float]]
    looks: Looks
    label: str = ""
    ends: Sequence[tuple[float, float] | None] = ()
    stairs: bool = False
    bars: Sequence[str] | None = None


@dataclass(frozen=True)
class Panel:
    """A panel. title: above it, what its y axis shows. x: what its x axis shows. log: the axes on which equal ratios
    are equally wide, as `x` or `xy`. ticks: of the x axis, if not at round numbers. names: of y = 0, 1, ... from the
    top down, instead of numbers; one may have several lines. within: the ends of the x axis, None to fit what is drawn.
    from_0: whether the y axis begins at 0. height: in inches, with its title and the numbers below it. shaded: the ends
    of a range of x that has a ground of its own.
    """

    series: Sequence[Series]
    title: str = ""
    x: str = ""
    log: str = ""
    ticks: Sequence[float] = ()
    names: Sequence[str] = ()
    within: tuple[float, float] | None = None
    from_0: bool = False
    height: float = 3.5
    shaded: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure, 9 inches wide: panels, by rows of equally many, and a legend of all of them below. share_x, share_y:
    whether all panels have the same axis; its numbers are then shown at the edge alone.
    """

    title: str
    panels: Sequence[Sequence[Panel]]
    share_x: bool = False
    share_y: bool = False


def require_drawable(path: Path | None = None) -> None:
    """Fail before anything is measured. Raises UsageError for a suffix not in SUFFIXES, or without matplotlib."""
    if path is not None and path.suffix.lower() not in SUFFIXES:
        remedy = f"End it in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise UsageError(f"cannot draw {path}: its name ends in no known format", remedy)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("a plot needs matplotlib, which is not installed", "Run `pip install matplotlib`") from error


@contextmanager
def sheet(height_in: float, width_in: float = 9.0, path: Path | None = None, salt: str = "fp8bench") -> Iterator[Any]:
    """Yield an empty figure; with a path, write it there when the block ends. salt: of an SVG's names, which differ
    within a page. Raises UsageError as require_drawable does, and RunFailed if the path cannot be written.
    """
    require_drawable(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ours: Any = {
        **{"svg.hashsalt": salt, "svg.fonttype": "none", "text.parse_math": False},
        **{"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]},
    }
    with rc_context(ours):
        made = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(made)
        yield made
        drawn = _drawn(made, path.suffix.lower()) if path else b""
    if path is not None:
        with writing(path, "Name another file for the plot"):
            # If the path is a link, write the file that it points to. The complete file is written, or none.
            write_atomically(path.resolve(), drawn, replace=True)


def _drawn(made: Any, suffix: str) -> bytes:
    # A .png has twice the pixels that a README shows, for screens that have them.
    drawn, dpi = BytesIO(), 1800 / made.get_figwidth()
    made.savefig(drawn, format=suffix[1:], dpi=dpi, metadata=OF_NOTHING[suffix], facecolor="white")
    return drawn.getvalue()


def inlined(made: Any, title: str, description: str) -> str:
    """Return the figure as an SVG element of a page: as wide as its column, in the page's font, and without a style,
    an address or metadata, which the page's policy forbids. description: its numbers, for those who cannot see it.
    """
    root = ElementTree.fromstring(_drawn(made, ".svg"))
    _plain(root)
    told = {"role": "img", "aria-label": inert(f"{title}. {description}"), "stroke-linejoin": "round"}
    root.attrib = {"viewBox": root.attrib["viewBox"], **told}
    return ElementTree.tostring(root, encoding="unicode")


def _plain(element: ElementTree.Element) -> None:
    element.tag = element.tag.rpartition("}")[2]
    kept = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    if element.tag == "g":
        kept.pop("id", None)
    styles = dict(one.split(": ", 1) for one in kept.pop("style", "").split("; ") if one)
    styles.pop("font-family", None)
    element.attrib = {
        name: value if name == "id" else re.sub(r"-?\d+\.\d{3,}", lambda length: f"{float(length[0]):.2f}", value)
        for name, value in (kept | styles).items()
    }
    element[:] = [child for child in element if child.tag.rpartition("}")[2] in MARKS]
    for child in element:
        _plain(child)
    if element.tag != "text":
        element.text = None
    element.tail = None


def luminance(colour: str) -> float:
    """Return WCAG's relative luminance of a colour, #rrggbb: from 0 of black to 1 of white."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def on(fill: str) -> str:
    """Return the colour of text on a fill, black or white: the one with more contrast, which is at least 4.5 to 1."""
    # There (L + 0.05) / 0.05 is 1.05 / (L + 0.05).
    return "black" if luminance(fill) > 0.179 else "white"


def draw(what: Figure, path: Path) -> None:
    """Draw the figure as a file. Raises as `sheet` does."""
    every = [panel for row in what.panels for panel in row]
    heights = [row[0].height for row in what.panels]
    with sheet(0.4 + sum(heights), path=path) as made:
        # An inch holds 10 letters.
        head = "\n".join(textwrap.wrap(inert(what.title), int(10 * made.get_figwidth())))
        made.suptitle(head, fontsize=11, fontweight="bold", color=INK, x=0.01, ha="left")
        grid: Any = {"squeeze": False, "sharex": what.share_x, "sharey": what.share_y, "height_ratios": heights}
        drawn = made.subplots(len(heights), len(what.panels[0]), **grid)
        for panel, axes in zip(every, drawn.flat, strict=True):
            _draw_panel(panel, axes)
        for axes in drawn[:-1].flat if what.share_x else ():
            axes.set_xlabel("")
        _draw_legend(made, {one.label: one.looks for panel in every for one in panel.series if one.label})


def drawing(make: Callable[[], Figure]) -> Callable[[Path], None]:
    """Return what draws the figure as a file, for a document: it is made only if it is drawn."""
    return lambda path: draw(make(), path)


def _draw_legend(made: Any, looks: dict[str, Looks]) -> None:
    # In as few lines as its width allows, and in no more columns than these lines need. The figure grows by them.
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=inert(name), solid_capstyle="butt", **of.drawn) for name, of in looks.items()]
    usual: Any = {"loc": "outside lower center", "fontsize": 9, "frameon": False, "labelcolor": INK}
    for lines in range(1, len(handles) + 1):
        columns = math.ceil(len(handles) / lines)
        legend = made.legend(handles=handles, ncols=columns, handlelength=3.2, columnspacing=1.6, **usual)
        if columns == 1 or legend.get_window_extent().width < made.bbox.width:
            made.set_figheight(made.get_figheight() + 0.2 * lines)
            return
        legend.remove()


def _draw_panel(panel: Panel, axes: Any) -> None:
    plain(axes, ("bottom",))
    axes.set_xlabel(inert(panel.x), fontsize=9, color=FAINT)
    axes.set_title(inert(panel.title), fontsize=9.5, color=INK, loc="left", pad=4)
    if panel.shaded is not None:
        axes.axvspan(*panel.shaded, color="#f6f8fa", linewidth=0, zorder=0)
    for one in panel.series:
        if one.points and one.bars is None:
            stairs: Any = {"drawstyle": "steps-mid"} if one.stairs else {}
            axes.plot(*zip(*one.points, strict=True), **one.looks.drawn, **stairs)
        for (x, _), ends in zip(one.points, one.ends, strict=False):
            axes.plot([x, x], ends or [None, None], color=one.looks.colour, linewidth=one.looks.width)
    _draw_bars([one for one in panel.series if one.bars is not None], axes)
    for letter in panel.log:
        axes.set(**{f"{letter}scale": "log"})
        getattr(axes, f"{letter}axis").set_major_formatter("{x:g}")
    if panel.ticks:
        axes.set_xticks(panel.ticks, list(map(str, panel.ticks)))
    if panel.names:
        names = ["\n".join(map(inert, name.splitlines())) for name in panel.names]
        axes.set_yticks(range(len(names)), names, color=INK)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(names) - 0.5, -0.5)
    # A limit, even None, ends the fitting of shared axes to what other panels draw.
    if panel.within:
        axes.set_xlim(panel.within)
    if panel.from_0:
        axes.set_ylim(bottom=0)
    axes.minorticks_off()


def _draw_bars(series: Sequence[Series], axes: Any) -> None:
    left = Counter(place for one in series for _, place in one.points)
    middle = {place: (count - 1) / 2 for place, count in left.items()}
    for one in series:
        for (length, place), text in zip(one.points, one.bars or (), strict=True):
            left[place] -= 1
            y = place + 0.8 / len(series) * (middle[place] - left[place])
            axes.barh(y, length, 0.72 / len(series), color=one.looks.colour)
            axes.text(length, y, f" {inert(text)}", va="center", fontsize=8, color=INK)
    if series:
        # Room for the text beside the longest bar, through which no line goes.
        axes.margins(x=0.15)
        axes.grid(False, axis="y")


def plain(axes: Any, sides: Sequence[str] = ("left", "bottom")) -> None:
    """Draw the grid of the axes and these sides of their frame, quieter than the plot and behind it."""
    axes.tick_params(labelsize=9, labelcolor=FAINT, color=GRID)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(GRID)
