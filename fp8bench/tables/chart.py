"""Every picture is drawn by matplotlib here: figures of studies as files, and charts of rows, in files and in a page.

A figure must be readable in a README at 900 pixels, and changes only with its numbers: the same numbers give the same
bytes. The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Text is never read as
mathematics: a record may hold anything.

A chart has a row of text for each of its rows, with its bar, the parts of one, or every sample below; or its point lies
above them. It is as wide as a phone's screen in CSS pixels (`WIDTH`), so that its text can be read there, and in a page
on a desktop. Numbers come as text: only positions are computed here. No meaning depends on colour alone.
"""

import math
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from xml.etree import ElementTree

from fp8bench.schema.errors import RunFailed, UsageError, inert
from fp8bench.schema.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH_IN = 9.0
PIXELS = 1800
"""The width of a .png: twice the pixels that a README shows, for screens that have them."""

OF_NOTHING: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata by suffix, without the day or the version of the software that drew the plot."""

LETTERS_OF_TITLE = 10
"""Letters of a title in an inch."""

INK = "#1f2328"
FAINT = "#59636e"
GRID = "#d8dee4"


def require_drawable(path: Path) -> None:
    """Fail before anything is measured. Raises UsageError for a suffix not in SUFFIXES, or without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"cannot draw {path}: its name ends in no known format",
            f"End it in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}",
        )
    _require_matplotlib()


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("a plot needs matplotlib, which is not installed", "Run `pip install matplotlib`") from error


@contextmanager
def figure(height_in: float, path: Path, width_in: float = WIDTH_IN) -> Iterator[Any]:
    """Yield a figure, and write it to `path` when the block ends.

    Raises UsageError as require_drawable does, and RunFailed if path cannot be written.
    """
    require_drawable(path)
    with sheet(height_in, width_in) as made:
        yield made
        drawn = _drawn(made, path.suffix.lower())
    try:
        # If the path is a link, write the file that it points to. The complete file is written, or none.
        write_atomically(path.resolve(), drawn, replace=True)
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror}", "Name another file for the plot") from error


@contextmanager
def sheet(height_in: float, width_in: float, salt: str = "fp8bench") -> Iterator[Any]:
    """Yield an empty figure. salt: of the names in an SVG, which must differ within a page. Raises UsageError without
    matplotlib.
    """
    _require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ours: Any = {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
    }
    with rc_context(ours):
        made = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(made)
        yield made


def _drawn(made: Any, suffix: str) -> bytes:
    drawn = BytesIO()
    dpi = PIXELS / made.get_figwidth()
    made.savefig(drawn, format=suffix[1:], dpi=dpi, metadata=OF_NOTHING[suffix], facecolor="white")
    return drawn.getvalue()


MARKS = frozenset(("svg", "g", "path", "text", "defs", "use", "clipPath", "rect"))
"""The elements that an SVG in a page may have."""


def inlined(made: Any, title: str, description: str) -> str:
    """Return the figure as an SVG element of a page: as wide as its column, in the page's font, and without a style,
    an address or metadata, which the page's policy forbids. description: its numbers, for those who cannot see it.
    """
    root = ElementTree.fromstring(_drawn(made, ".svg"))
    _plain(root)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": inert(f"{title}. {description}"),
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _plain(element: ElementTree.Element) -> None:
    """Make styles attributes, round lengths to a hundredth, and keep no element that is not of MARKS."""
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
    for child in list(element):
        if child.tag.rpartition("}")[2] in MARKS:
            _plain(child)
        else:
            element.remove(child)
    if element.tag != "text":
        element.text = None
    element.tail = None


@dataclass(frozen=True)
class Line:
    """A line of a chart. points: (x, y) each. broken: drawn with dashes."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    broken: bool = False


DASHES = (0, (4, 2))


def lines(
    path: Path,
    heading: str,
    of: Sequence[Line],
    titles: tuple[str, str],
    x_text: Callable[[float], str] = "{:g}".format,
    *,
    log_y: bool = False,
    level: tuple[str, float] | None = None,
) -> None:
    """Draw lines over sizes on a logarithmic axis, each size with its name. titles: of the axes. level: the name and
    the height of a horizontal line. Raises as `figure` does.
    """
    with figure(4.6, path) as made:
        axes = made.add_subplot()
        for one in of:
            looks: Any = {"color": one.colour, "linestyle": DASHES if one.broken else "-", "label": one.name}
            x, y = zip(*one.points, strict=True) if one.points else ((), ())
            axes.plot(x, y, marker="o", markersize=3.5, linewidth=1.8, **looks)
        if level is not None:
            axes.axhline(level[1], color=FAINT, linewidth=1.2, linestyle=(0, (1, 2)), label=level[0])
        axes.set_xscale("log", base=2)
        sizes = sorted({x for one in of for x, _ in one.points})
        axes.set_xticks(sizes, list(map(x_text, sizes)))
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
        axes.minorticks_off()
        plain(axes, *titles)
        title(made, heading)
        handles = axes.get_legend_handles_labels()[0]
        looks = {"loc": "outside lower center", "fontsize": 9, "frameon": False, "labelcolor": INK}
        made.legend(handles=handles, ncols=min(3, len(handles)), handlelength=3.4, **looks)


def on(fill: str) -> str:
    """Return the colour of text on a fill, black or white: the one with more contrast, which is at least 4.5 to 1."""
    return "black" if contrast(fill, "#000000") >= contrast(fill, "#ffffff") else "white"


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast of two colours, #rrggbb each."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def title(figure: Any, text: str) -> None:
    """Write the title in as many lines as the figure's width needs."""
    lines = textwrap.wrap(inert(text), int(LETTERS_OF_TITLE * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), fontsize=11, fontweight="bold", color=INK, x=0.01, ha="left")


def legend(figure: Any, entries: Sequence[dict[str, Any]], columns: int, **looks: Any) -> None:
    """Draw the legend below everything else. entries: how each line is drawn, or each field if it has a facecolor."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(**one) if "facecolor" in one else Line2D([], [], **one) for one in entries]
    shown = {"loc": "outside lower center", "fontsize": 9, "frameon": False, "labelcolor": INK, "columnspacing": 1.6}
    figure.legend(handles=handles, ncols=columns, **{**shown, **looks})


def box(axes: Any, x: float, y: float, width: float, height: float, colour: str) -> None:
    """Draw a field, with an outline that shows a white one on paper."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=GRID, linewidth=0.6))


def blend(one: str, other: str, share: float) -> str:
    """Return the colour between two, #rrggbb each, with this share of the other."""
    pairs = ((int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def plain(axes: Any, x: str = "", y: str = "") -> None:
    """Name the axes and draw their grid, both quieter than the plot."""
    axes.set_xlabel(x, fontsize=9, color=FAINT)
    axes.set_ylabel(y, fontsize=9, color=FAINT)
    axes.tick_params(labelsize=9, labelcolor=FAINT, color=GRID)
    axes.grid(True, color=GRID, linewidth=0.6)
    frame(axes, "left", "bottom")


def frame(axes: Any, *sides: str) -> None:
    """Show only these sides of the frame, as pale as the grid, and behind the plot."""
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(GRID)


WIDTH = 360.0
"""In points, of which an inch has 72 and a phone's screen 358."""

TEXT, SMALL = 10.5, 10.1
"""Sizes of text: a phone shows 10 pixels at least."""

LETTERS = 56
"""Letters of a line across the whole width."""

LINE, BAR, ROW = 13.0, 12.0, 48.0
"""Heights in points: of a line of text, of a bar, and of a row with two lines, its bar and what separates it."""

COLOURS = {
    "first": "#0072b2",
    "other": "#8fb8d6",
    "reference": "#7a6a58",
    "reported": "#ffffff",
}
"""Colours of bars: the best row, the others, the reference, and figures that were not measured."""


@dataclass(frozen=True)
class Item:
    """The text of a row: its number in the table, if there is one, its name and, on the right, its value; below them
    what distinguishes it from others of that name and, on the right, what else is known.
    """

    number: int | None
    name: str
    value: str
    detail: str = ""
    remark: str = ""

    @property
    def title(self) -> str:
        return self.name if self.number is None else f"{self.number}  {self.name}"


@dataclass(frozen=True)
class Row:
    """What a chart draws of a row."""

    item: Item


RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True)
class Chart(ABC, Generic[RowT]):
    """A chart. name: selects it. caption: how to read it."""

    name: str
    title: str
    caption: str
    rows: tuple[RowT, ...]

    @property
    def height(self) -> float:
        return ROW * len(self.rows)

    @abstractmethod
    def paint(self, axes: "Axes") -> None:
        """Draw on axes of WIDTH x height points, whose y goes down from 0."""

    def write(self, path: Path) -> None:
        """Write the chart below its title and caption. Raises as chart.figure does."""
        head = textwrap.wrap(inert(self.title), LETTERS - 6)
        lines = [*head, *textwrap.wrap(inert(self.caption), LETTERS + 16)]
        above = 10 + LINE * len(lines)
        with figure((above + self.height) / 72, path, WIDTH / 72) as made:
            axes = self._axes(made, above)
            for place, line in enumerate(lines):
                bold: Any = {"fontsize": 11.5, "weight": "bold", "color": INK}
                looks = bold if place < len(head) else {"fontsize": 9.5, "color": FAINT}
                axes.text(2, LINE * (place + 1) - above, line, **looks)
            self.paint(axes)

    def svg(self) -> str:
        """Return the chart without title and caption, as an element of a page."""
        with sheet(self.height / 72, WIDTH / 72, self.name) as figure:
            self.paint(self._axes(figure, 0.0))
            numbers = "; ".join(
                " ".join(filter(None, (one.title, one.value, one.remark))) for one in (row.item for row in self.rows)
            )
            return inlined(figure, self.title, numbers)

    def _axes(self, figure: Any, above: float) -> "Axes":
        figure.set_layout_engine("none")
        axes: Axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(self.height, -above)
        return axes


def _shortened(text: str, letters: float) -> str:
    """Return as much of the text as fits; the table has the complete text."""
    text = inert(text)
    return text if len(text) <= letters else f"{text[: max(2, int(letters)) - 1]}\u2026"


def _head(axes: "Axes", item: Item, y: float) -> float:
    """Write the two lines of a row whose top is at y, and return the middle of the bar below them."""
    bold: Any = {"fontsize": TEXT, "weight": "bold", "color": INK}
    faint: Any = {"fontsize": SMALL, "color": FAINT}
    right: Any = {"x": WIDTH - 2, "ha": "right"}
    value, remark = _shortened(item.value, LETTERS / 2), _shortened(item.remark, LETTERS * 0.7)
    axes.text(2, y + 10, _shortened(item.title, LETTERS - len(value)), **bold)
    axes.text(y=y + 10, s=value, **right, **bold)
    axes.text(2, y + 10 + LINE, _shortened(item.detail, LETTERS + 2 - len(remark)), **faint)
    axes.text(y=y + 10 + LINE, s=remark, **right, **faint)
    return y + 15.5 + LINE + BAR / 2


def _line(axes: "Axes", x: Sequence[float], y: Sequence[float], colour: str, width: float, **looks: Any) -> None:
    axes.plot(x, y, color=colour, linewidth=width, clip_on=False, **{"solid_capstyle": "butt", **looks})


@dataclass(frozen=True)
class Bar(Row):
    """A bar. value: at least 0. interval: its ends, if any. look: its colour."""

    value: float
    interval: tuple[float, float] | None = None
    look: str = "other"


@dataclass(frozen=True)
class Bars(Chart[Bar]):
    """Bars from zero. broken_at: a value marked by a broken line across each bar."""

    broken_at: float | None = None

    def paint(self, axes: "Axes") -> None:
        most = max(end for bar in self.rows for end in (bar.value, *(bar.interval or ())))
        # A single very wide interval does not shorten all bars.
        most = min(most, 1.5 * max(bar.value for bar in self.rows)) or 1.0

        def at(value: float) -> float:
            return 2 + min(1.0, value / most) * (WIDTH - 6)

        for place, bar in enumerate(self.rows):
            y = _head(axes, bar.item, place * ROW)
            edge = FAINT if bar.look == "reported" else "none"
            axes.barh(y, at(bar.value) - 2, BAR, left=2, color=COLOURS[bar.look], edgecolor=edge, clip_on=False)
            if self.broken_at is not None:
                x, ends = [at(self.broken_at)] * 2, (y - BAR / 2, y + BAR / 2)
                _line(axes, x, ends, "white", 3)
                _line(axes, x, ends, INK, 1.2, linestyle=(0, (3, 2)))
            if bar.interval is not None:
                low, high = map(at, bar.interval)
                # Seen on a dark bar too: ink within white.
                for colour, wide in (("white", 3.6), (INK, 1.4)):
                    for x1, x2, up in ((low, high, 0.0), (low, low, 4.0), (high, high, 4.0)):
                        _line(axes, (x1, x2), (y - up, y + up), colour, wide, solid_capstyle="projecting")


@dataclass(frozen=True)
class Stack(Row):
    """A bar of parts. parts: the name and length of each."""

    parts: tuple[tuple[str, float], ...]


LEGEND_COLUMNS = 2
PALE = 1.2
"""The contrast with paper below which a part has an outline."""


@dataclass(frozen=True)
class Stacks(Chart[Stack]):
    """Bars of parts. colours: of each part, in the order of the legend. write: formats a part's number."""

    colours: tuple[tuple[str, str], ...]
    write_part: Callable[[float], str]

    @property
    def shown(self) -> list[tuple[str, str]]:
        there = {name for stack in self.rows for name, _ in stack.parts}
        return [(name, colour) for name, colour in self.colours if name in there]

    @property
    def _legend_height(self) -> float:
        return 16.0 * math.ceil(len(self.shown) / LEGEND_COLUMNS) + 4

    @property
    def height(self) -> float:
        return self._legend_height + super().height

    def paint(self, axes: "Axes") -> None:
        colours = dict(self.colours)
        for place, (name, colour) in enumerate(self.shown):
            x, y = 2 + place % LEGEND_COLUMNS * WIDTH / LEGEND_COLUMNS, 8 + 16.0 * (place // LEGEND_COLUMNS)
            axes.barh(y, 11, 11, left=x, color=colour, edgecolor=FAINT, linewidth=0.6)
            axes.text(x + 17, y + 3.8, name, fontsize=SMALL, color=INK)
        longest = max(sum(length for _, length in stack.parts) for stack in self.rows) or 1.0
        for place, stack in enumerate(self.rows):
            y, left = _head(axes, stack.item, self._legend_height + place * ROW) + 1, 2.0
            for name, length in stack.parts:
                wide = length / longest * (WIDTH - 4)
                edge = FAINT if contrast(colours[name], "#ffffff") < PALE else "white"
                axes.barh(y, wide, BAR + 2, left=left, color=colours[name], edgecolor=edge, linewidth=0.6)
                text = self.write_part(length)
                if wide >= 1 + 5.8 * len(text):
                    ink = on(colours[name])
                    axes.text(left + wide / 2, y + 3.7, text, ha="center", fontsize=SMALL, color=ink)
                left += wide


@dataclass(frozen=True)
class Strip(Row):
    """A row of samples. rounds: the samples of each round, in order."""

    rounds: tuple[tuple[float, ...], ...]


EVEN = 0.01
TICKS = (0.0, 0.01, -0.01, 0.05, -0.05, 0.2, 1.0, -0.2, -0.5, 5.0, 20.0)
"""Shares that are marked, the most important first, if there is room."""


def _stretched(off: float) -> float:
    """Return an offset on a scale that is linear within EVEN, where the noise is, and logarithmic beyond it."""
    return math.asinh(off / EVEN)


@dataclass(frozen=True)
class Strips(Chart[Strip]):
    """Every sample as an upright stroke, the rounds of a row one below the other, at its distance from the row's
    median, stretched (`_stretched`) so that a hundredth is visible next to a half. A longer stroke is a round's mean.
    """

    @property
    def height(self) -> float:
        return super().height + 16

    def paint(self, axes: "Axes") -> None:
        middles = [median(sample for steps in strip.rounds for sample in steps) for strip in self.rows]
        off = [
            [[sample / middle - 1 for sample in steps] for steps in strip.rounds]
            for strip, middle in zip(self.rows, middles, strict=True)
        ]
        every = [one for rounds in off for steps in rounds for one in steps]
        low, high = _stretched(min(*every, -0.02)), _stretched(max(*every, 0.02))

        def at(share: float) -> float:
            return 4 + (_stretched(share) - low) / (high - low) * (WIDTH - 8)

        taken: list[float] = []
        for share in TICKS:
            x = at(share)
            if 22 <= x <= WIDTH - 22 and all(abs(x - other) >= 46 for other in taken):
                taken.append(x)
                said = f"{share * 100:+z.0f} %" if share else "median"
                axes.text(x, 10, said, ha="center", fontsize=SMALL, color=FAINT)
                for place in range(len(self.rows)):
                    bottom = 16 + (place + 1) * ROW - 3
                    _line(axes, (x, x), (bottom - BAR - 5, bottom), GRID, 1)
        for place, (strip, rounds) in enumerate(zip(self.rows, off, strict=True)):
            y = _head(axes, strip.item, 16 + place * ROW)
            step = (BAR + 4) / len(rounds)
            for number, steps in enumerate(rounds):
                middle = y + 1 + (number + 0.5) * step - (BAR + 4) / 2
                _strokes(axes, [at(one) for one in steps], middle, 0.42 * step, "#0072b2", 1.0)
                _strokes(axes, [at(fmean(steps))], middle, 0.5 * step, "#b3400f", 2.4)


def _strokes(axes: "Axes", places: Sequence[float], y: float, half: float, colour: str, width: float) -> None:
    """Draw upright strokes as one path: an element for each would make a page of megabytes."""
    x = [value for place in places for value in (place, place, math.nan)]
    _line(axes, x, [y - half, y + half, math.nan] * len(places), colour, width)


@dataclass(frozen=True)
class Point(Row):
    """A point; smaller x and y are better. ends: both ends of its interval, (x, y) each. front: on the front."""

    x: float
    y: float
    ends: tuple[tuple[float, float], tuple[float, float]] | None = None
    front: bool = False


AXES_HEIGHT = 215.0


@dataclass(frozen=True)
class Scatter(Chart[Point]):
    """Points with their numbers, each named below. Those of the front are filled, and a line of steps connects them."""

    x_title: str
    y_title: str

    @property
    def height(self) -> float:
        return AXES_HEIGHT + 10 + 2.2 * LINE * len(self.rows)

    def paint(self, axes: "Axes") -> None:
        high, whole = self.height, axes.get_ylim()[0] - axes.get_ylim()[1]
        place = (48 / WIDTH, (high - AXES_HEIGHT + 34) / whole, 1 - 56 / WIDTH, (AXES_HEIGHT - 56) / whole)
        plot: Axes = axes.figure.add_axes(place)
        front = sorted((point for point in self.rows if point.front), key=lambda point: point.x)
        plot.step([p.x for p in front], [p.y for p in front], where="post", color=COLOURS["first"], linewidth=1.5)
        # The first rows are above the others.
        for number, point in reversed([*enumerate(self.rows)]):
            if point.ends is not None:
                plot.plot(*zip(*point.ends, strict=True), color=INK, linewidth=1.5)
            fill, edge, ink = (COLOURS["first"],) * 2 + ("white",) if point.front else ("white", INK, INK)
            order = 3 + 0.01 * (len(self.rows) - number)
            plot.plot(point.x, point.y, "o", markersize=16, color=fill, markeredgecolor=edge, zorder=order)
            said: Any = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "color": ink, "zorder": order}
            plot.text(point.x, point.y, str(point.item.number), **said)
            _head(axes, point.item, AXES_HEIGHT + 10 + 2.2 * LINE * number)
        plot.margins(0.09)
        plot.ticklabel_format(useOffset=False, style="plain")
        plot.locator_params(nbins=5)
        plain(plot)
        plot.tick_params(labelsize=SMALL, length=0)
        axes.text(2, 12, self.y_title, fontsize=SMALL, color=FAINT)
        axes.text(WIDTH - 8, AXES_HEIGHT - 2, self.x_title, ha="right", fontsize=SMALL, color=FAINT)
