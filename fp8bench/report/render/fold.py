"""A table that is never divided, made to fit a width: long cells and headings are folded at spaces and after `/`, but
not within brackets. If even that is too wide, spare columns are omitted.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from fp8bench.report.document import Column, Table
from fp8bench.schema.errors import inert

_PIECE = re.compile(r"\([^()]*\)|[^ /]*/|[^ /]+")


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
    widths = [_least(column) for column in columns]
    left = width - _total(widths, gap)
    for wanted in ([_longest(column.cells) for column in columns], list(map(_natural, columns))):
        for place in sorted(range(len(columns)), key=lambda one: wanted[one] - widths[one]):
            more = max(0, min(left, wanted[place] - widths[place]))
            widths[place] += more
            left -= more
    lines = [
        one._replace(heading=_wrapped(one.heading, wide), cells=tuple(_wrapped(cell, wide) for cell in one.cells))
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


def _least(column: Column) -> int:
    return max((len(piece) for text in (column.heading, *column.cells) for piece in _PIECE.findall(text)), default=0)


def _wrapped(text: str, width: int) -> str:
    """Split the text into lines of at most `width` characters, except for longer pieces."""
    if len(text) <= width:
        return text
    lines = [""]
    for piece in _PIECE.findall(text):
        between = " " if lines[-1] and not lines[-1].endswith("/") else ""
        if lines[-1] and len(lines[-1]) + len(between) + len(piece) > width:
            lines.append(piece)
        else:
            lines[-1] += between + piece
    return "\n".join(lines)
