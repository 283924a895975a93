"""Cells in columns, as text. A library that does this takes as long to import as the rest of an answer to compute."""

from collections.abc import Sequence
from typing import Literal

Form = Literal["plain", "simple", "github"]
"""plain: the rows alone. simple: headings over a line of dashes. github: a table of markdown."""

ROOM = 2
"""Characters by which a column is wider than its heading."""

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows, right: Sequence[bool], form: Form, headings: Sequence[str] = ()) -> str:
    """right: whether a column's cells end at its right edge, one for each. headings: each with as many lines as the
    others; none of `plain`.
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
