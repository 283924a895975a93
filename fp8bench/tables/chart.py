"""Every picture is drawn by matplotlib: here figures of studies as files, in `row_chart` charts of rows for a page.

A figure must be readable in a README at 900 pixels, and changes only with its numbers: the same numbers give the same
bytes. The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Text is never read as
mathematics: a record may hold anything.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
def figure(height_in: float, path: Path, width_in: float = 9.0) -> Iterator[Any]:
    """Yield a figure, and write it to `path` when the block ends. Raises UsageError as require_drawable does, and
    RunFailed if path cannot be written.
    """
    require_drawable(path)
    with sheet(height_in, width_in) as made:
        yield made
        drawn = _drawn(made, path.suffix.lower())
    with writing(path, "Name another file for the plot"):
        # If the path is a link, write the file that it points to. The complete file is written, or none.
        write_atomically(path.resolve(), drawn, replace=True)


@contextmanager
def sheet(height_in: float, width_in: float, salt: str = "fp8bench") -> Iterator[Any]:
    """Yield an empty figure. salt: of an SVG's names, which differ within a page. Raises as require_drawable does."""
    require_drawable()
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
    # An inch holds 10 letters.
    lines = textwrap.wrap(inert(text), int(10 * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), fontsize=11, fontweight="bold", color=INK, x=0.01, ha="left")


def legend(figure: Any, entries: Sequence[dict[str, Any]], columns: int, **looks: Any) -> None:
    """Draw the legend below everything else. entries: how each line is drawn, or each field if it has a facecolor."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(**one) if "facecolor" in one else Line2D([], [], **one) for one in entries]
    usual: Any = {"loc": "outside lower center", "fontsize": 9, "frameon": False, "labelcolor": INK}
    figure.legend(handles=handles, ncols=columns, **{**usual, "columnspacing": 1.6, **looks})


def plain(axes: Any, x: str = "", y: str = "") -> None:
    """Name the axes and draw their grid, both quieter than the plot."""
    axes.set_xlabel(x, fontsize=9, color=FAINT)
    axes.set_ylabel(y, fontsize=9, color=FAINT)
    panel(axes, "", FAINT, ("left", "bottom"))


def panel(axes: Any, title: str = "", y_colour: str = INK, sides: Sequence[str] = ("bottom",)) -> None:
    """Draw a panel's title, its grid and these sides of its frame, quieter than the plot and behind it."""
    axes.set_title(title, fontsize=9.5, color=INK, loc="left", pad=4)
    axes.tick_params(labelsize=9, labelcolor=FAINT, color=GRID)
    axes.tick_params(axis="y", labelcolor=y_colour)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(GRID)
