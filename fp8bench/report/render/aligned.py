"""Cells in columns, as text. Importing a library for this takes as long as computing the rest of an answer."""

from collections.abc import Sequence
from typing import Literal

Form = Literal["plain", "simple", "github"]
"""plain: only the rows. simple: headings over a line of dashes. github: a markdown table."""

ROOM = 2
"""Characters by which a column is wider than its heading."""

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows, right: Sequence[bool], form: Form, headings: Sequence[str] = ()) -> str:
    """Return the table as text. right: for each column, whether its cells are aligned right. headings: all with the
    same number of lines; none for `plain`.
    """
    above = [line.split("\n") for line in headings]
    cells = [[cell.strip() for cell in row] for row in rows]
    columns = list(zip(*cells, strict=True)) or [() for _ in right]
    of_headings = [max(map(len, lines)) + ROOM for lines in above] or [0] * len(right)
    widths = [max([least, *map(len, column)]) for least, column in zip(of_headings, columns, strict=True)]

    def line(row: Sequence[str]) -> str:
        placed = zip(row, widths, right, strict=True)
        return _joined([cell.rjust(width) if ends else cell.ljust(width) for cell, width, ends in placed], form)

    rule = ["-" * (width + 2) for width in widths] if form == "github" else ["-" * width for width in widths]
    head = [*map(line, zip(*above, strict=True)), f"|{'|'.join(rule)}|" if form == "github" else "  ".join(rule)]
    return "\n".join([*(head if headings else ()), *map(line, cells)])


def _joined(cells: Sequence[str], form: Form) -> str:
    return f"| {' | '.join(cells)} |" if form == "github" else "  ".join(cells).rstrip()
