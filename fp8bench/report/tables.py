"""A comparison as text: a table in a terminal, plain text, markdown, csv or json. Looks only; every number is in the
row.

Short marks stand in the row; longer ones, why a verdict is inconclusive, and the reason of a mode that did not run, are
footnotes under the table. Warnings about all rows follow them, and what so few processes cannot show.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fp8bench.report.cell_text import csv_cell, safe_in
from fp8bench.report.columns import GAIN, VERDICT, Column, columns
from fp8bench.report.letters import Letters
from fp8bench.report.rich_table import empty_table
from fp8bench.report.row import Comparison, Row
from fp8bench.report.table_split import split
from fp8bench.schema.plain_text import inert

SHORT_MARK = 24
SHORT_MARKS = 48
"""Characters of a mark, and of all marks of a row together, that stand in the row."""

NAMING_COLUMNS = 2


def to_json(comparison: Comparison) -> str:
    """A list of rows, every field of `Row`, numbers unrounded."""
    return json.dumps([row.model_dump(mode="json") for row in comparison.rows], indent=2)


def to_csv(comparison: Comparison) -> str:
    """A line a row, every field of `Row`, numbers unrounded; lists, and names with values, are joined by `; `; null is
    empty. What a spreadsheet would take for a formula begins with `'`.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        writer.writerow({name: csv_cell(value) for name, value in row.model_dump(mode="json").items()})
    return buffer.getvalue().rstrip("\n")


def to_markdown(comparison: Comparison) -> str:
    """A GitHub table with its footnotes."""
    return _with_tabulate(comparison, "github", "\n\n")


def to_plain(comparison: Comparison) -> str:
    """A table for a pipe or a file."""
    return _with_tabulate(comparison, "simple", "\n")


def _with_tabulate(comparison: Comparison, form: str, between: str) -> str:
    from tabulate import tabulate

    safe = safe_in(form)
    notes = Footnotes()
    shown = [*columns(comparison.rows), notes.column]
    table = tabulate(
        [[safe(column.write(row)) for column in shown] for row in comparison.rows],
        headers=[safe(column.heading) for column in shown],
        tablefmt=form,
        colalign=["right" if column.numeric else "left" for column in shown],
        disable_numparse=True,
    )
    warnings = (f"warning: {warning}" for warning in comparison.warnings)
    return between.join([table, *map(safe, (*notes.lines(), *warnings, *unseen(comparison.rows)))])


def unseen(rows: Sequence[Row]) -> list[str]:
    """A line of what the row with the fewest processes cannot show; none where nothing was measured."""
    known = [row for row in rows if row.unseen_share is not None]
    if not known:
        return []
    least = max(known, key=lambda row: row.unseen_share or 0)
    processes = "1 process" if least.rounds == 1 else f"{least.rounds} processes"
    fewest = "a row" if {row.rounds for row in known} == {least.rounds} else "(the fewest of a row here)"
    return [
        f"With {processes} {fewest}, a state that fewer than {(least.unseen_share or 0) * 100:.0f} % of processes have "
        "(a slow start, another kernel) may be unseen; more --rounds show more."
    ]


def print_rich(comparison: Comparison) -> None:
    """To the terminal: in one table where it fits, else in several, each with its rows' numbers and names. Warnings
    are not repeated: the command line has them on stderr.
    """
    from rich.console import Console

    console = Console()
    notes = Footnotes()
    rows = comparison.rows
    numbers = {row.run_id: str(number) for number, row in enumerate(rows, start=1)}
    number = Column("#", lambda row: numbers[row.run_id])
    whole = [_inert(column) for column in (*columns(rows), notes.column)]
    for shown in split(whole, NAMING_COLUMNS, rows, console.width, number):
        console.print(_rich_table(rows, shown))
    for line in [*notes.lines(), *unseen(rows)]:
        console.print(inert(line), style="dim", markup=False, highlight=False)


def _inert(column: Column) -> Column:
    """As it is drawn, so that its width is counted so too."""
    return replace(column, heading=inert(column.heading), write=lambda row: inert(column.write(row)))


def _rich_table(rows: Sequence[Row], shown: Sequence[Column]) -> Any:
    from rich.text import Text

    table = empty_table((column.heading, column.numeric) for column in shown)
    for row in rows:
        style = "bold" if row.is_reference else "" if row.status == "ok" else "dim"
        table.add_row(*(Text(column.write(row), style=_colour(column, row)) for column in shown), style=style)
    return table


def _colour(column: Column, row: Row) -> str:
    """Of a gain, and of the verdict on it; what is inconclusive has none."""
    if column.heading not in (GAIN, VERDICT) or row.is_reference or row.gain_vs_reference is None:
        return ""
    if row.verdict is not None:
        return {"better value": "green", "worse value": "red"}.get(row.verdict, "")
    return "green" if row.gain_vs_reference > 0 else "red"


class Footnotes:
    """Letters for what is too long for a cell; equal texts share a letter."""

    def __init__(self) -> None:
        self._letters = Letters()
        self.column = Column("notes", self.mark, numeric=False)

    def mark(self, row: Row) -> str:
        """The notes of a row: its status and cause if it is not ok, its short marks, and letters for the rest."""
        words: list[str] = [] if row.status == "ok" else [row.outcome]
        long = [] if row.reason is None else [row.reason]
        for mark in row.marks:
            fits = len(mark) <= SHORT_MARK and len(", ".join([*words, mark])) <= SHORT_MARKS
            (words if fits else long).append(mark)
        if row.verdict == "inconclusive" and row.verdict_why:
            long.append(f"inconclusive: {row.verdict_why}")
        return " ".join([", ".join(words), *(f"[{self._letters.of(text)}]" for text in long)]).strip()

    def lines(self) -> list[str]:
        """One line a letter."""
        return self._letters.lines()
