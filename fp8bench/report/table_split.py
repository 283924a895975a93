"""Which columns of a wide table stand side by side in a terminal.

A table that is too wide becomes several, each beginning with the columns that name a row, so that each can be read by
itself. Counts characters only: whoever asks draws the tables.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

PADDING = 3
"""Characters that rich puts beside a cell: one on either side, and one between two columns."""


class Written(Protocol):
    """A column as far as its width goes: a heading, of one line or more, and how a row's cell is written."""

    @property
    def heading(self) -> str: ...

    @property
    def write(self) -> Callable[[Any], str]: ...


ColumnT = TypeVar("ColumnT", bound=Written)


def split(
    whole: Sequence[ColumnT], naming: int, rows: Sequence[Any], width: int, number: ColumnT | None = None
) -> list[list[ColumnT]]:
    """The columns of each table, at most `width` characters wide each, if any choice of them is.

    naming: how many of the first columns name a row. number: a column that goes before those, where there are several
    tables. Every table has at least one column beside these, however wide.
    """
    if fits(whole, rows, width):
        return [list(whole)]
    needs = [_need(column, rows) for column in whole]
    names = [*([] if number is None else [number]), *whole[:naming]]
    named = sum(needs[:naming]) + (0 if number is None else _need(number, rows))
    tables = [list(names)]
    taken = named
    for column, need in zip(whole[naming:], needs[naming:], strict=True):
        if len(tables[-1]) > len(names) and taken + need > width:
            tables.append(list(names))
            taken = named
        tables[-1].append(column)
        taken += need
    return tables


def fits(whole: Sequence[Written], rows: Sequence[Any], width: int) -> bool:
    """Whether all columns can stand side by side in `width` characters."""
    return sum(_need(column, rows) for column in whole) <= width


def _need(column: Written, rows: Sequence[Any]) -> int:
    """Characters of the widest cell, of a line of the heading or of a row, with what stands between columns."""
    return PADDING + max(map(len, (*column.heading.split("\n"), *map(column.write, rows))))
