"""A comparison as text: a table in a terminal, plain text, markdown, csv or json. Looks only; every number is in the
row.

Short marks stand in the row; longer ones, and the reason of a mode that did not run, are footnotes under the table.
"""

import csv
import io
import json
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from fp8bench.report.columns import Column, columns
from fp8bench.report.row import Comparison, Row

SHORT_MARK = 16


def to_json(comparison: Comparison) -> str:
    """A list of rows, every field of `Row`, numbers unrounded."""
    return json.dumps([row.model_dump(mode="json") for row in comparison.rows], indent=2)


def to_csv(comparison: Comparison) -> str:
    """A line a row, every field of `Row`, numbers unrounded; lists are joined by `; `, null is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        writer.writerow({name: _flat(value) for name, value in row.model_dump(mode="json").items()})
    return buffer.getvalue().rstrip("\n")


def _flat(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def to_markdown(comparison: Comparison) -> str:
    """A GitHub table with its footnotes."""
    return _with_tabulate(comparison, "github", "\n\n")


def to_plain(comparison: Comparison) -> str:
    """A table for a pipe or a file."""
    return _with_tabulate(comparison, "simple", "\n")


def _with_tabulate(comparison: Comparison, form: str, between: str) -> str:
    from tabulate import tabulate

    shown, notes = columns(comparison.rows), Footnotes()
    body = [[*(column.write(row) for column in shown), notes.mark(row)] for row in comparison.rows]
    table = tabulate(
        body,
        headers=[*(column.heading for column in shown), "notes"],
        tablefmt=form,
        colalign=[*("right" if column.numeric else "left" for column in shown), "left"],
        disable_numparse=True,
    )
    return between.join([table, *notes.lines()])


def print_rich(comparison: Comparison) -> None:
    """To the terminal: one table where it fits, else one for the speed and one for the money."""
    from rich.console import Console

    console = Console()
    whole = columns(comparison.rows)
    notes = Footnotes()
    if _width(comparison.rows, whole) <= console.width:
        console.print(_rich_table(comparison.rows, whole, notes))
    else:
        console.print(_rich_table(comparison.rows, [c for c in whole if c.theme in ("what", "speed")], notes))
        console.print(_rich_table(comparison.rows, [c for c in whole if c.theme in ("what", "money")], notes))
    for line in notes.lines():
        console.print(line, style="dim", markup=False, highlight=False)


def _rich_table(rows: Sequence[Row], shown: Sequence[Column], notes: "Footnotes") -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in shown:
        table.add_column(column.heading, justify="right" if column.numeric else "left")
    table.add_column("notes")
    for row in rows:
        style = "bold" if row.is_reference else "" if row.status == "ok" else "dim"
        cells = [Text(column.write(row), style=_colour(column, row)) for column in shown]
        table.add_row(*cells, Text(notes.mark(row)), style=style)
    return table


def _colour(column: Column, row: Row) -> str:
    if column.heading != "gain" or row.gain_vs_reference is None or row.is_reference:
        return ""
    return "green" if row.gain_vs_reference > 0 else "red"


def _width(rows: Sequence[Row], shown: Sequence[Column]) -> int:
    notes = Footnotes()
    widths = [max(len(column.heading), *(len(column.write(row)) for row in rows)) for column in shown]
    return sum(widths) + 3 * len(widths) + max(5, *(len(notes.mark(row)) for row in rows))


class Footnotes:
    """Letters for what is too long for a cell; equal texts share a letter."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, row: Row) -> str:
        """The notes of a row: its status if it is not ok, its short marks, and letters for the rest."""
        words: list[str] = [] if row.status == "ok" else [row.status]
        long = [] if row.reason is None else [row.reason]
        for mark in row.marks:
            (words if len(mark) <= SHORT_MARK else long).append(mark)
        return " ".join([", ".join(words), *(f"[{self._letter(text)}]" for text in long)]).strip()

    def lines(self) -> list[str]:
        """One line a letter."""
        return [f"[{letter}] {text}" for text, letter in self._letters.items()]

    def _letter(self, text: str) -> str:
        place = len(self._letters)
        letter = ascii_lowercase[place % 26] * (1 + place // 26)
        return self._letters.setdefault(text, letter)
