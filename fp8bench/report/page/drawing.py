"""A drawing: rectangles, lines, dots and labels in pixels, laid out for one width.

A chart draws the same in a page and in a file of its own. Colours are names (`Look`), whose values a style sheet
defines for a light and for a dark screen. The colours of data are Okabe and Ito's, which colour-blind readers can
distinguish, and no meaning depends on colour alone. Text stays text.
"""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from markupsafe import Markup, escape

from fp8bench.schema.errors import inert

Look: TypeAlias = str
Anchor = Literal["start", "middle", "end"]

LIGHT: dict[Look, str] = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "faint": "#59636e",
    "grid": "#d8dee4",
    "first": "#0072b2",
    "other": "#8fb8d6",
    "reference": "#7a6a58",
    "reported": "#ffffff",
    "bad": "#b3400f",
    "on-dark": "#ffffff",
    "on-light": "#1f2328",
    "idle": "#f2f2f2",
    "part-1": "#0072b2",
    "part-2": "#56b4e9",
    "part-3": "#a6d8f5",
    "part-4": "#009e73",
    "part-5": "#d55e00",
    "part-6": "#efe3a0",
    "part-7": "#e69f00",
    "part-8": "#cc79a7",
    "part-9": "#4d2a6b",
    "part-10": "#b0b0b0",
}
DARK: dict[Look, str] = {
    **LIGHT,
    "paper": "#14181d",
    "ink": "#e6edf3",
    "faint": "#a3adb8",
    "grid": "#333b44",
    "first": "#56b4e9",
    "other": "#3d6480",
    "reference": "#b6a38d",
    "reported": "#14181d",
    "bad": "#ff9d6b",
    "idle": "#39414a",
    "part-9": "#8d68ad",
}
WHITE_TEXT = frozenset(("part-1", "part-4", "part-5", "part-9"))
"""Fills on which white text can be read; on the other parts, dark text can be read."""


@dataclass(frozen=True)
class Rect:
    """A rectangle. edge: the look of its outline. title: the text that a pointer over it shows."""

    x: float
    y: float
    width: float
    height: float
    look: Look
    edge: Look = ""
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A line. width: of the stroke."""

    x1: float
    y1: float
    x2: float
    y2: float
    look: Look
    width: float = 1
    dashed: bool = False


@dataclass(frozen=True)
class Dots:
    """Many dots of one size. edge: the look of their outlines; without outlines the dots are translucent, because they
    overlap.
    """

    points: tuple[tuple[float, float], ...]
    radius: float
    look: Look
    edge: Look = ""
    title: str = ""


@dataclass(frozen=True)
class Label:
    """A text. y: the position of its baseline."""

    x: float
    y: float
    text: str
    look: Look = "ink"
    anchor: Anchor = "start"
    size: float = 13
    bold: bool = False


Element = Rect | Line | Dots | Label


@dataclass(frozen=True)
class Drawing:
    """A drawing. width, height: pixels. title: a few words. description: its numbers, for those who cannot see it."""

    title: str
    description: str
    width: float
    height: float
    elements: tuple[Element, ...] = field(default=())


FILE, WIDE, NARROW = 760, 560, 340
"""Widths in pixels: in a file of its own, in a page on a desktop (two charts side by side), and on a phone."""

SMALL = 12
MINUTE = 11

LINE_PX = 16
"""From one line of small text to the next."""


@dataclass(frozen=True)
class Chart(ABC):
    """A chart. name: selects it. caption: how to read it."""

    name: str
    title: str
    caption: str

    @abstractmethod
    def draw(self, width: float) -> Drawing:
        """Lay out the chart in this number of pixels."""


def heading(number: int, name: str, detail: str, y: float, width: float) -> tuple[list[Element], float]:
    """Return the name and the detail of a row, side by side if both fit, and the position below them. They are above
    the row's bar, not next to it, so that a long name fits a phone; a long detail takes several lines.
    """
    named = f"{number}  {name}"
    elements: list[Element] = [Label(0, y + 13, shortened(named, width), bold=True)]
    if text_width(named) + text_width(detail, SMALL) + 16 <= width:
        return [*elements, Label(width, y + 13, detail, "faint", "end", SMALL)], y + 19
    lines = folded(detail, width, SMALL)
    below = [Label(0, y + 29 + LINE_PX * place, line, "faint", size=SMALL) for place, line in enumerate(lines)]
    return [*elements, *below], y + 35 + LINE_PX * (len(lines) - 1)


def described(rows: Iterable[tuple[int, str, str]]) -> str:
    """Return each row's number, name and values as text."""
    return "; ".join(f"{number} {name}: {text}" for number, name, text in rows)


def moved(element: Element, right: float, down: float) -> Element:
    if isinstance(element, Dots):
        return replace(element, points=tuple((x + right, y + down) for x, y in element.points))
    if isinstance(element, Line):
        x1, x2, y1, y2 = element.x1 + right, element.x2 + right, element.y1 + down, element.y2 + down
        return replace(element, x1=x1, x2=x2, y1=y1, y2=y2)
    return replace(element, x=element.x + right, y=element.y + down)


def text_width(text: str, size: float = 13) -> float:
    """Return an upper bound of the text's width in pixels, for a sans-serif font."""
    return 0.62 * size * len(text)


def folded(text: str, room: float, size: float = 13) -> list[str]:
    """Return the lines into which the text is divided to fit: at its colon, and then between words. There is at least
    one line; a word that is too long is shortened.
    """
    if len(text) <= _fits(room, size):
        return [text]
    head, colon, rest = text.partition(": ")
    if colon:
        return [*folded(f"{head}:", room, size), *folded(rest, room, size)]
    lines = textwrap.wrap(text, _fits(room, size), break_long_words=False, break_on_hyphens=False)
    return [shortened(line, room, size) for line in lines]


def _fits(room: float, size: float) -> int:
    """Return how many letters fit."""
    return max(3, int(room / (0.58 * size)))


def shortened(text: str, room: float, size: float = 13) -> str:
    """Return as much of the text as fits; the table has the complete text."""
    fits = _fits(room, size)
    return text if len(text) <= fits else f"{text[: fits - 1]}\u2026"


def svg(drawing: Drawing, key: str, style: str = "") -> Markup:
    """Return the drawing as an element of a page. key: unique in the page. style: a style sheet of its own."""
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{title}</title><desc id="{key}-d">{description}</desc>'
    ).format(
        w=_n(drawing.width),
        h=_n(drawing.height),
        key=inert(key),
        title=inert(drawing.title),
        description=inert(drawing.description),
    )
    sheet = Markup("<style>{}</style>").format(Markup(style)) if style else Markup("")
    return head + sheet + Markup("\n").join(_markup_of(element) for element in drawing.elements) + Markup("</svg>")


def style(palette: dict[Look, str]) -> str:
    """Return the style sheet of a drawing in its own file: its colours and its font."""
    rules = [f".f-{look}{{fill:{colour}}}.s-{look}{{stroke:{colour}}}" for look, colour in palette.items()]
    return f"text{{font-family:system-ui,sans-serif}}.thin{{fill-opacity:.4}}{''.join(rules)}"


def _markup_of(element: Element) -> Markup:
    if isinstance(element, Label):
        bold = Markup(' font-weight="600"') if element.bold else ""
        return Markup('<text x="{}" y="{}" font-size="{}" text-anchor="{}" class="f-{}"{}>{}</text>').format(
            _n(element.x), _n(element.y), _n(element.size), element.anchor, element.look, bold, inert(element.text)
        )
    if isinstance(element, Line):
        dashes = Markup(' stroke-dasharray="4 3"') if element.dashed else ""
        return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" stroke-width="{}" class="s-{}"{}/>').format(
            *map(_n, (element.x1, element.y1, element.x2, element.y2, element.width)), element.look, dashes
        )
    title = Markup("<title>{}</title>").format(inert(element.title)) if element.title else ""
    edge = Markup(" s-{}").format(element.edge) if element.edge else ""
    if isinstance(element, Rect):
        return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="f-{}{}">{}</rect>').format(
            *map(_n, (element.x, element.y, element.width, element.height)), element.look, edge, title
        )
    return Markup("").join(_dot(point, element, edge, title) for point in element.points)


def _dot(point: tuple[float, float], element: Dots, edge: str, title: str) -> Markup:
    thin = "" if element.edge else " thin"
    return Markup('<circle cx="{}" cy="{}" r="{}" class="f-{}{}{}">{}</circle>').format(
        _n(point[0]), _n(point[1]), _n(element.radius), element.look, edge, thin, title
    )


def _n(value: float) -> str:
    """Write a length to a tenth of a pixel."""
    return escape(f"{value:.1f}".removesuffix(".0"))
