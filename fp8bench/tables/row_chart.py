"""Charts of rows, in a page and in files of their own.

A chart is as wide as a phone's screen in CSS pixels (`WIDTH`), so that its text can be read there, and in a page on a
desktop. Numbers come as text: only positions are computed here. No meaning depends on colour alone.
"""

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8bench.schema.errors import inert
from fp8bench.tables.chart import FAINT, INK, inlined, luminance, on, plain, sheet

if TYPE_CHECKING:
    from fp8bench.tables.chart import Axes

WIDTH, LETTERS = 360.0, 56
"""In points, of which an inch has 72 and a phone's screen 358; and the letters of a line across it."""

TEXT, SMALL = 10.5, 10.1
"""Sizes of text: a phone shows 10 pixels at least."""

LINE, BAR, ROW, AXES_HEIGHT = 13.0, 14.0, 48.0, 215.0
"""Heights in points: of a line of text, of a bar, of a row with two lines, its bar and what separates it, of axes."""

COLOURS = {"first": "#005b8f", "other": "#5b97c0", "reference": "#7a6a58", "reported": "#ffffff"}
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
class Chart(ABC):
    """A chart. name: selects it. caption: how to read it."""

    name: str
    title: str
    caption: str
    rows: Sequence[Item]

    @property
    def height(self) -> float:
        return ROW * len(self.rows)

    @abstractmethod
    def paint(self, axes: "Axes") -> None:
        """Draw on axes of WIDTH x height points, whose y goes down from 0."""

    def write(self, path: Path) -> None:
        """Write the chart below its title and caption. Raises as chart.sheet does."""
        head = textwrap.wrap(inert(self.title), LETTERS - 6)
        lines = [*head, *textwrap.wrap(inert(self.caption), LETTERS + 16)]
        above = 10 + LINE * len(lines)
        with sheet((above + self.height) / 72, WIDTH / 72, path) as made:
            axes = self._axes(made, above)
            for place, line in enumerate(lines):
                bold: Any = {"fontsize": 11.5, "weight": "bold", "color": INK}
                looks = bold if place < len(head) else {"fontsize": 9.5, "color": FAINT}
                axes.text(2, LINE * (place + 1) - above, line, **looks)
            self.paint(axes)

    def svg(self) -> str:
        """Return the chart without title and caption, as an element of a page."""
        numbers = (" ".join(filter(None, (row.title, row.value, row.remark))) for row in self.rows)
        with sheet(self.height / 72, WIDTH / 72, salt=self.name) as figure:
            self.paint(self._axes(figure, 0.0))
            return inlined(figure, self.title, "; ".join(numbers))

    def _axes(self, figure: Any, above: float) -> "Axes":
        figure.set_layout_engine("none")
        axes: Axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(self.height, -above)
        return axes


def _shortened(text: str, letters: float) -> str:
    text = inert(text)
    return text if len(text) <= letters else f"{text[: max(2, int(letters)) - 1]}\u2026"


def _head(axes: "Axes", item: Item, y: float) -> float:
    bold: Any = {"fontsize": TEXT, "weight": "bold", "color": INK}
    faint: Any = {"fontsize": SMALL, "color": FAINT}
    right: Any = {"x": WIDTH - 2, "ha": "right"}
    value, remark = _shortened(item.value, LETTERS / 2), _shortened(item.remark, LETTERS * 0.7)
    axes.text(2, y + 10, _shortened(item.title, LETTERS - len(value)), **bold)
    axes.text(y=y + 10, s=value, **right, **bold)
    axes.text(2, y + 10 + LINE, _shortened(item.detail, LETTERS + 6 - len(remark)), **faint)
    axes.text(y=y + 10 + LINE, s=remark, **right, **faint)
    return y + 15.5 + LINE + BAR / 2


def _line(axes: "Axes", x: Sequence[float], y: Sequence[float], colour: str, width: float, **looks: Any) -> None:
    axes.plot(x, y, color=colour, linewidth=width, clip_on=False, **{"solid_capstyle": "butt", **looks})


@dataclass(frozen=True, kw_only=True)
class Bar(Item):
    """A bar from zero. parts: the name and length of each, at least 0. interval: the ends of the whole, if any."""

    parts: tuple[tuple[str, float], ...]
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Bars(Chart):
    """Bars of one part or several. colours: of each part, in the order of a legend. broken_at: a value marked by a
    broken line across each bar. write_part: formats a part's number; with it there is a legend.
    """

    rows: Sequence[Bar]
    colours: Mapping[str, str] = field(default_factory=COLOURS.copy)
    broken_at: float | None = None
    write_part: Callable[[float], str] | None = None

    @property
    def legend(self) -> list[str]:
        there = {name for bar in self.rows for name, _ in bar.parts}
        return [name for name in self.colours if name in there] if self.write_part else []

    @property
    def height(self) -> float:
        return self._above + super().height

    @property
    def _above(self) -> float:
        return 16.0 * math.ceil(len(self.legend) / 2) + 4 if self.legend else 0.0

    def paint(self, axes: "Axes") -> None:
        for place, name in enumerate(self.legend):
            x, y = 2 + place % 2 * WIDTH / 2, 8 + 16.0 * (place // 2)
            axes.barh(y, 11, 11, left=x, color=self.colours[name], edgecolor=FAINT, linewidth=0.6)
            axes.text(x + 17, y + 3.8, name, fontsize=SMALL, color=INK)
        longest = max(sum(length for _, length in bar.parts) for bar in self.rows)
        # A single very wide interval does not shorten all bars.
        most = min(max(longest, *(end for bar in self.rows for end in bar.interval or (0.0,))), 1.5 * longest) or 1.0

        def at(value: float) -> float:
            return 2 + min(1.0, value / most) * (WIDTH - 6)

        for place, bar in enumerate(self.rows):
            y = _head(axes, bar, self._above + place * ROW)
            ends = accumulate((length for _, length in bar.parts), initial=0.0)
            for (name, length), (left, right) in zip(bar.parts, pairwise(map(at, ends)), strict=True):
                colour = self.colours[name]
                # What is pale has an outline.
                edge = FAINT if luminance(colour) > 0.8 else "white"
                axes.barh(y, right - left, BAR, left=left, color=colour, edgecolor=edge, linewidth=0.6, clip_on=False)
                text = self.write_part(length) if self.write_part else ""
                if text and right - left >= 1 + 5.8 * len(text):
                    axes.text((left + right) / 2, y + 3.7, text, ha="center", fontsize=SMALL, color=on(colour))
            if self.broken_at is not None and self.broken_at != sum(length for _, length in bar.parts):
                reference, both = [at(self.broken_at)] * 2, (y - BAR / 2, y + BAR / 2)
                _line(axes, reference, both, "white", 3)
                _line(axes, reference, both, INK, 1.2, linestyle=(0, (3, 2)))
            if bar.interval is not None:
                low, high = map(at, bar.interval)
                # Seen on a dark bar too: ink within white.
                for colour, wide in (("white", 3.6), (INK, 1.4)):
                    for x1, x2, up in ((low, high, 0.0), (low, low, 4.0), (high, high, 4.0)):
                        _line(axes, (x1, x2), (y - up, y + up), colour, wide, solid_capstyle="projecting")


@dataclass(frozen=True, kw_only=True)
class Point(Item):
    """A point; smaller is better. ends: (x, y) of its interval's ends. hollow: not measured there."""

    x: float
    y: float
    ends: tuple[tuple[float, float], ...] = ()
    front: bool = False
    hollow: bool = False


@dataclass(frozen=True)
class Scatter(Chart):
    """Points with their numbers, each named below. A line of steps connects those of the front."""

    rows: Sequence[Point]
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
            if point.ends:
                plot.plot(*zip(*point.ends, strict=True), color=INK, linewidth=1.5)
            edge = COLOURS["first"] if point.front else FAINT
            fill, ink = ("white", INK) if point.hollow else (edge, "white")
            order = 3 + 0.01 * (len(self.rows) - number)
            plot.plot(point.x, point.y, "o", markersize=16, color=fill, markeredgecolor=edge, zorder=order)
            said: Any = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "color": ink, "zorder": order}
            plot.text(point.x, point.y, str(point.number), **said)
            _head(axes, point, AXES_HEIGHT + 10 + 2.2 * LINE * number)
        plot.margins(0.09)
        plot.ticklabel_format(useOffset=False, style="plain")
        plot.locator_params(nbins=5)
        plain(plot)
        plot.tick_params(labelsize=SMALL, length=0)
        axes.text(2, 12, self.y_title, fontsize=SMALL, color=FAINT)
        axes.text(WIDTH - 8, AXES_HEIGHT - 2, self.x_title, ha="right", fontsize=SMALL, color=FAINT)
