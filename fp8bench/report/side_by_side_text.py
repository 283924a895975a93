"""Records side by side as text: how a table's columns, cells and headings are written and drawn. Looks only.

A column is of one record, whose label stands over its quantity, or one of those that name a row. Such a name is left
out where the row above has it too, the last of them never, so that every row has a name of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fp8bench.report.cell_text import safe_in
from fp8bench.report.rich_table import empty_table
from fp8bench.report.side_by_side import Difference
from fp8bench.report.table_split import fits, split
from fp8bench.schema.plain_text import inert

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "-"
NAMELESS = "not run"
"""Over a section whose rows have none of the names: what stopped before it came to them."""

RowT = TypeVar("RowT")
WrittenT = TypeVar("WrittenT", contravariant=True)


def _plain(_row: Any) -> str:
    return ""


@dataclass(frozen=True)
class Column(Generic[WrittenT]):
    """label: of the record that it is of; empty for a column that names rows. colour: of a row's cell, rich's name."""

    quantity: str
    write: Callable[[WrittenT], str]
    label: str = ""
    numeric: bool = True
    colour: Callable[[WrittenT], str] = _plain

    @property
    def heading(self) -> str:
        """In lines, each as short as it can be, so that a long label widens no narrow column."""
        return "\n".join([*self.label.split(), self.quantity])

    @property
    def line(self) -> str:
        """The heading in one line."""
        return f"{self.label}: {self.quantity}" if self.label else self.quantity


@dataclass(frozen=True)
class Table(Generic[RowT]):
    """naming: how many of the first columns name a row. sections: how many of those name several rows together, which
    in a narrow terminal have a table of their own.
    """

    columns: Sequence[Column[RowT]]
    rows: Sequence[RowT]
    naming: int
    sections: int = 0


def to_text(table: Table[Any], form: str) -> str:
    """form: `github` or `simple`, tabulate's names."""
    from tabulate import tabulate

    columns = table.columns
    safe = safe_in(form)
    headings = [safe(column.line) for column in columns] if form == "github" else _headings(columns)
    written: str = tabulate(
        [[safe(cell) for cell in cells] for cells in _cells(table)],
        headers=headings,
        tablefmt=form,
        colalign=["right" if column.numeric else "left" for column in columns],
        disable_numparse=True,
    )
    return written


def print_table(table: Table[Any], console: "Console") -> None:
    """As one where it fits; else a table for each section, its columns split where that is needed."""
    from rich.text import Text

    if not table.sections or fits(table.columns, table.rows, console.width):
        for shown in split(table.columns, table.naming, table.rows, console.width):
            _draw(Table(shown, table.rows, table.naming), console)
        return
    naming, columns = table.columns[: table.sections], table.columns[table.sections :]
    for name, group in groupby(table.rows, key=lambda row: [column.write(row) for column in naming]):
        console.print(Text(inert(", ".join(word for word in name if word != NOTHING)) or NAMELESS, style="bold"))
        rows = list(group)
        for shown in split(columns, table.naming - table.sections, rows, console.width):
            _draw(Table(shown, rows, table.naming - table.sections), console)


def _draw(table: Table[Any], console: "Console") -> None:
    from rich.text import Text

    numeric = (column.numeric for column in table.columns)
    drawn = empty_table(zip(_headings(table.columns), numeric, strict=True))
    for row, cells in zip(table.rows, _cells(table), strict=True):
        colours = (column.colour(row) for column in table.columns)
        drawn.add_row(*(Text(inert(cell), style=colour) for cell, colour in zip(cells, colours, strict=True)))
    console.print(drawn)


def _headings(columns: Sequence[Column[Any]]) -> list[str]:
    """All as high as the highest, filled from above: what a column is of stands next to its first cell."""
    headings = ["\n".join(map(inert, column.heading.split("\n"))) for column in columns]
    height = max(heading.count("\n") for heading in headings)
    return ["\n" * (height - heading.count("\n")) + heading for heading in headings]


def _cells(table: Table[Any]) -> Iterator[list[str]]:
    above: list[str] = []
    for row in table.rows:
        cells = [column.write(row) for column in table.columns]
        same = 0
        while same < table.naming - 1 and above[same : same + 1] == cells[same : same + 1]:
            same += 1
        yield [""] * same + cells[same:]
        above = cells


def told(differences: Sequence[Difference], labels: Sequence[str]) -> list[str]:
    """One line of what differs, record by record; none where nothing does."""
    if not differences:
        return []
    every = []
    for place, label in enumerate(labels):
        known = (f"{one.name} {one.values[place] or NOTHING}".strip() for one in differences)
        every.append(f"{label}: {', '.join(known)}")
    return [f"{'; '.join(every)}."]


def said_by(labels: Sequence[str], sentences: Sequence[Sequence[str]]) -> list[str]:
    """Each record's sentences after its label; equal ones once, after all that say them; what all say, after none."""
    who: dict[str, list[str]] = {}
    for label, said in zip(labels, sentences, strict=True):
        for sentence in said:
            who.setdefault(sentence, []).append(label)
    return [_said(sentence, saying, len(labels)) for sentence, saying in who.items()]


def _said(sentence: str, saying: Sequence[str], every: int) -> str:
    return sentence if len(saying) == every else f"{', '.join(saying)}: {sentence}"
