"""A table that is never divided, made to fit a width: long cells and headings are folded at spaces and after `/` and
`:`, but not within brackets; without room for that, names after `-` and `_` too. If even that is too wide, spare
columns are omitted.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from fp8bench.report.document import Column, Table
from fp8bench.schema.errors import inert

_PIECE = re.compile(r"\([^()]*\)|[^ /:]*[/:]|[^ /:]+")
_SMALL = re.compile(r"\([^()]*\)|[^ /:_-]*[/:_-]|[^ /:_-]+")
"""What is left whole: of names, too, where words are too wide."""


class Folded(NamedTuple):
    """The result. table: its cells and headings are split into lines by line breaks. omitted: the titles of columns
    that did not fit.
    """

    table: Table
    omitted: tuple[str, ...] = ()


def folded(table: Table, width: int, gap: int) -> Folded:
    """Return the table with inert text, and with units in its headings. gap: characters between two columns.

    Columns keep their natural width if there is room. Otherwise the width that is left goes first to cells and then to
    headings, in each case first to those that lack least.
    """
    columns = [
        one._replace(heading=inert(one.title), unit="", cells=tuple(map(inert, one.cells))) for one in table.columns
    ]
    omitted: list[str] = []
    if _total(map(_natural, columns), gap) <= width:
        return Folded(table._replace(columns=tuple(columns)))
    while _total(map(_least, columns), gap) > width and any(column.spare for column in columns):
        spare = max(place for place, column in enumerate(columns) if column.spare)
        omitted.append(columns.pop(spare).heading)
    # Names are folded before numbers.
    ways = (_PIECE, True), (_SMALL, True), (_PIECE, False)
    every = [[_least(one, piece, whole and one.numeric) for one in columns] for piece, whole in ways]
    place = next((place for place, widths in enumerate(every) if _total(widths, gap) <= width), len(ways) - 1)
    (piece, _), widths = ways[place], every[place]
    left = width - _total(widths, gap)
    for wanted in ([_longest(column.cells) for column in columns], list(map(_natural, columns))):
        for place in sorted(range(len(columns)), key=lambda one: wanted[one] - widths[one]):
            more = max(0, min(left, wanted[place] - widths[place]))
            widths[place] += more
            left -= more
    lines = [
        one._replace(
            heading=_wrapped(one.heading, wide, piece), cells=tuple(_wrapped(cell, wide, piece) for cell in one.cells)
        )
        for one, wide in zip(columns, widths, strict=True)
    ]
    return Folded(table._replace(columns=tuple(lines)), tuple(reversed(omitted)))


def _total(widths: Iterable[int], gap: int) -> int:
    every = list(widths)
    return sum(every) + gap * (len(every) - 1)


def _natural(column: Column) -> int:
    return _longest((column.heading, *column.cells))


def _longest(texts: Iterable[str]) -> int:
    return max((len(text) for text in texts), default=0)


def _least(column: Column, piece: re.Pattern[str] = _PIECE, whole: bool = False) -> int:
    """Return the width of the widest piece. whole: whether cells are not folded."""
    texts = (column.heading, *(() if whole else column.cells))
    pieces = max((len(found) for text in texts for found in piece.findall(text)), default=0)
    return max(pieces, _longest(column.cells)) if whole else pieces


def _wrapped(text: str, width: int, piece: re.Pattern[str]) -> str:
    """Split the text into lines of at most `width` characters, except for longer pieces."""
    if len(text) <= width:
        return text
    lines, end = [""], 0
    for found in piece.finditer(text):
        between = " " if lines[-1] and found.start() > end else ""
        end = found.end()
        if lines[-1] and len(lines[-1]) + len(between) + len(found[0]) > width:
            lines.append(found[0])
        else:
            lines[-1] += between + found[0]
    return "\n".join(lines)
