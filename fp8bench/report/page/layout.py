"""What all charts have in common: widths, sizes of text, and the heading of a row.

A name stands over its bar and not beside it, so that a long one fits a phone.
"""

from collections.abc import Iterable

from fp8bench.report.page.drawing import Label, Mark, shortened, text_width

FILE, WIDE, NARROW = 760, 560, 340
"""Pixels: in a file of its own, in a page on a desk (two side by side), and on a phone."""

SMALL = 12
MINUTE = 11


def heading(number: int, name: str, detail: str, y: float, width: float) -> tuple[list[Mark], float]:
    """The name of a row and what is said of it, side by side where both have room; and where what follows begins."""
    named = f"{number}  {name}"
    marks: list[Mark] = [Label(0, y + 13, shortened(named, width), bold=True)]
    if text_width(named) + text_width(detail, SMALL) + 16 <= width:
        return [*marks, Label(width, y + 13, detail, "faint", "end", SMALL)], y + 19
    return [*marks, Label(0, y + 29, shortened(detail, width, SMALL), "faint", size=SMALL)], y + 35


def told(rows: Iterable[tuple[int, str, str]]) -> str:
    """Of each row its number, name and values."""
    return "; ".join(f"{number} {name}: {said}" for number, name, said in rows)
