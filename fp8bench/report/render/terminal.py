"""A document in a terminal: colours, and tables as wide as the terminal.

A table that is too wide becomes several: first one for each section, if it has sections. Then its columns are divided
over tables that each begin with the columns that name a row, so that each can be read by itself. Warnings are not
shown, because the command line shows them on standard error.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from fp8bench.report.document import NOTHING, Column, Document, Heading, Note, Sentence, Table, Warned
from fp8bench.report.render.fold import folded
from fp8bench.report.render.plain import SOFT_HYPHEN, omission, stacked
from fp8bench.schema.errors import inert

if TYPE_CHECKING:
    from rich.console import Console

PADDING = 3
"""Characters that rich adds to a cell: one on either side, and one between two columns."""

TIGHT_PADDING = 2
"""The same if padding is collapsed."""


def split(
    whole: Sequence[Column], naming: int, width: int, number: Column | None = None, padding: int = PADDING
) -> list[list[Column]]:
    """Return the columns of each table, at most `width` characters wide each if that is possible.

    naming: how many of the first columns name a row. number: a column that precedes them if there are several tables.
    Every table has at least one column in addition to these, however wide.
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
    """Return whether all columns fit side by side in `width` characters."""
    return sum(_need(column, padding) for column in whole) <= width


def _need(column: Column, padding: int) -> int:
    """Return the characters of the widest cell, or line of the heading, plus the padding."""
    return padding + max(map(len, (*column.heading.split("\n"), *column.cells)))


NAMELESS = "not run"
"""The heading of a section whose rows have no names, because they stopped before they got any."""

COLOURS = {"good": "green", "doubtful": "yellow", "bad": "red"}
STYLES = {"strong": "bold", "faint": "dim"}
LOOKS: dict[type, str] = {Heading: "bold", Note: "dim", Sentence: ""}


def render(document: Document) -> str:
    """Return the document as text, as wide as the terminal of standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    with console.capture() as captured:
        below_text = False
        for block in document.blocks:
            parts = [part for part in block if not isinstance(part, Warned)]
            # A table prints its own empty lines.
            if below_text and parts and not isinstance(parts[0], Table):
                console.print()
            for part in parts:
                if isinstance(part, Table):
                    print_table(part, console)
                else:
                    console.print(Text(inert(part.text), style=LOOKS[type(part)]))
            below_text = bool(parts) and not isinstance(parts[-1], Table)
    return captured.get().removesuffix("\n")


def print_table(table: Table, console: "Console") -> None:
    """Print the table, divided into as many tables as the console's width needs."""
    from rich.text import Text

    if table.whole:
        _print_whole(table, console)
        return
    padding = TIGHT_PADDING if table.tight else PADDING
    drawn = _as_drawn(table, console.width, padding)
    if table.sections and (table.apart or not fits(drawn.columns, console.width, padding)):
        sections = list(_sections(drawn))
    else:
        sections = [("", drawn)]
    numbers = tuple(str(row) for row in range(1, table.height + 1))
    number = Column("#", numbers) if table.numbered else None
    for name, section in sections:
        if name:
            console.print(Text(name, style="bold"))
        for columns in split(section.columns, section.naming, console.width, number, padding):
            _draw(section._replace(columns=tuple(columns)), console)


def _print_whole(table: Table, console: "Console") -> None:
    """Print one table, and a line that names each column that did not fit."""
    from rich.text import Text

    # Rich adds a character on either side of the table.
    fitted = folded(table._replace(tight=True), console.width - 2, TIGHT_PADDING)
    _draw(fitted.table, console)
    for line in omission(fitted.omitted):
        console.print(Text(line, style=LOOKS[Note]))


def _as_drawn(table: Table, width: int, padding: int) -> Table:
    """Return the table with inert text, headings in lines; without room, folded, and then without spare columns."""
    columns = [
        column._replace(heading=heading, unit="", cells=tuple(map(inert, column.cells)))
        for column, heading in zip(table.columns, stacked(table.columns), strict=True)
    ]
    begin = table.sections if table.apart else 0
    whole = [column._replace(heading=column.heading.replace(SOFT_HYPHEN, "")) for column in columns]
    if not table.tight or fits(whole[begin:], width, padding):
        return table._replace(columns=tuple(whole))
    folded = [*whole[: table.naming], *map(_folded, columns[table.naming :])]
    if not fits(folded[begin:], width, padding):
        folded = [column for column in folded if not column.spare]
    return table._replace(columns=tuple(folded))


def _folded(column: Column) -> Column:
    """Return the column with a word of its heading on each line: numbers are narrower than their headings."""
    words = column.heading.replace(SOFT_HYPHEN, "-\n").replace(", ", "\n").replace(":", ":\n").replace(" ", "\n")
    return column._replace(heading=words)


def _sections(table: Table) -> Iterator[tuple[str, Table]]:
    """Yield each section with its name, without the columns that name it."""
    naming, columns = table.columns[: table.sections], table.columns[table.sections :]
    of_rows = list(zip(*(column.cells for column in naming), strict=True))
    for name, group in groupby(range(table.height), key=of_rows.__getitem__):
        section = table.at(list(group), columns)._replace(naming=table.naming - table.sections)
        if table.apart:
            section = section._replace(columns=tuple(column for column in section.columns if column.says_something))
        yield ", ".join(word for word in name if word not in ("", NOTHING)) or NAMELESS, section


def _draw(table: Table, console: "Console") -> None:
    """Print the table. Long cells are folded, except the names in a tight table; headings are text, not markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    frame = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=table.tight)
    for place, column in enumerate(table.columns):
        whole = table.tight and place < table.naming
        frame.add_column(
            Text(column.heading), justify="right" if column.numeric else "left", overflow="fold", no_wrap=whole
        )
    emphasis = table.emphasis or ("",) * table.height
    for row, (cells, style) in enumerate(zip(table.cells(), emphasis, strict=True)):
        tones = [COLOURS.get(column.tones[row], "") if column.tones else "" for column in table.columns]
        styled = (Text(cell, style=tone) for cell, tone in zip(cells, tones, strict=True))
        frame.add_row(*styled, style=STYLES.get(style, ""))
    console.print(frame)
