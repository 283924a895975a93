"""Which columns of a wide table stand side by side in a terminal.

A table that is too wide becomes several, each beginning with the columns that name a row, so that each can be read by
itself. Counts characters only: whoever asks draws the tables.
"""

from collections.abc import Sequence

from fp8bench.report.document import Column

PADDING = 3
"""Characters that rich puts beside a cell: one on either side, and one between two columns."""

TIGHT_PADDING = 2
"""The same where padding is collapsed."""


def split(
    whole: Sequence[Column], naming: int, width: int, number: Column | None = None, padding: int = PADDING
) -> list[list[Column]]:
    """The columns of each table, at most `width` characters wide each, if any choice of them is.

    naming: how many of the first columns name a row. number: a column that goes before those, where there are several
    tables. Every table has at least one column beside these, however wide.
    """
    if fits(whole, width, padding):
        return [list(whole)]
    names = [*([] if number is None else [number]), *whole[:naming]]
    named = sum(_need(column, padding) for column in names)
    tables = [list(names)]
    taken = named
    for column in whole[naming:]:
        need = _need(column, padding)
        if len(tables[-1]) > len(names) and taken + need > width:
            tables.append(list(names))
            taken = named
        tables[-1].append(column)
        taken += need
    return tables


def fits(whole: Sequence[Column], width: int, padding: int = PADDING) -> bool:
    """Whether all columns can stand side by side in `width` characters."""
    return sum(_need(column, padding) for column in whole) <= width


def _need(column: Column, padding: int) -> int:
    """Characters of the widest cell, of a line of the heading or of a row, with what stands between columns."""
    return padding + max(map(len, (*column.heading.split("\n"), *column.cells)))
