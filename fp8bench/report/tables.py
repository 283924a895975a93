"""A comparison as text: a table in a terminal, plain text, markdown, csv or json. Looks only; every number is in the
row.

Short marks stand in the row; longer ones, and the reason of a mode that did not run, are footnotes under the table.
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from fp8bench.report.columns import Column, columns
from fp8bench.report.letters import Letters
from fp8bench.report.rich_table import empty_table
from fp8bench.report.row import Comparison, Row
from fp8bench.report.table_split import split

SHORT_MARK = 24
NAMING_COLUMNS = 2


def to_json(comparison: Comparison) -> str:
    """A list of rows, every field of `Row`, numbers unrounded."""
    return json.dumps([row.model_dump(mode="json") for row in comparison.rows], indent=2)


def to_csv(comparison: Comparison) -> str:
    """A line a row, every field of `Row`, numbers unrounded; lists, and names with values, are joined by `; `; null is
    empty.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        writer.writerow({name: _flat(value) for name, value in row.model_dump(mode="json").items()})
    return buffer.getvalue().rstrip("\n")


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return "; ".join(f"{name} {part}" for name, part in value.items() if part is not None)
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def to_markdown(comparison: Comparison) -> str:
    """A GitHub table with its footnotes."""
    return _with_tabulate(comparison, "github", "\n\n")


def to_plain(comparison: Comparison) -> str:
    """A table for a pipe or a file."""
    return _with_tabulate(comparison, "simple", "\n")


def _with_tabulate(comparison: Comparison, form: str, between: str) -> str:
    from tabulate import tabulate

    notes = Footnotes()
    shown = [*columns(comparison.rows), notes.column]
    table = tabulate(
        [[column.write(row) for column in shown] for row in comparison.rows],
        headers=[column.heading for column in shown],
        tablefmt=form,
        colalign=["right" if column.numeric else "left" for column in shown],
        disable_numparse=True,
    )
    return between.join([table, *notes.lines()])


def print_rich(comparison: Comparison) -> None:
    """To the terminal: in one table where it fits, else in several, each with its rows' numbers and names."""
    from rich.console import Console

    console = Console()
    notes = Footnotes()
    rows = comparison.rows
    numbers = {row.run_id: str(number) for number, row in enumerate(rows, start=1)}
    number = Column("#", lambda row: numbers[row.run_id])
    for shown in split([*columns(rows), notes.column], NAMING_COLUMNS, rows, console.width, number):
        console.print(_rich_table(rows, shown))
    for line in notes.lines():
        console.print(line, style="dim", markup=False, highlight=False)


def _rich_table(rows: Sequence[Row], shown: Sequence[Column]) -> Any:
    from rich.text import Text

    table = empty_table((column.heading, column.numeric) for column in shown)
    for row in rows:
        style = "bold" if row.is_reference else "" if row.status == "ok" else "dim"
        table.add_row(*(Text(column.write(row), style=_colour(column, row)) for column in shown), style=style)
    return table


def _colour(column: Column, row: Row) -> str:
    if column.heading != "gain" or row.gain_vs_reference is None or row.is_reference:
        return ""
    return "green" if row.gain_vs_reference > 0 else "red"


class Footnotes:
    """Letters for what is too long for a cell; equal texts share a letter."""

    def __init__(self) -> None:
        self._letters = Letters()
        self.column = Column("notes", self.mark, numeric=False)

    def mark(self, row: Row) -> str:
        """The notes of a row: its status if it is not ok, its short marks, and letters for the rest."""
        words: list[str] = [] if row.status == "ok" else [row.status]
        long = [] if row.reason is None else [row.reason]
        for mark in row.marks:
            (words if len(mark) <= SHORT_MARK else long).append(mark)
        return " ".join([", ".join(words), *(f"[{self._letters.of(text)}]" for text in long)]).strip()

    def lines(self) -> list[str]:
        """One line a letter."""
        return self._letters.lines()
