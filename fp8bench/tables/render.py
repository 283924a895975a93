"""Documents as text: a table for a terminal (rich) or a pipe (tabulate), markdown, LaTeX, csv and json.

What is wider than the terminal, or than COLUMNS in a pipe, is folded: texts, headings and remarks at spaces, names
after `:`, `/` and `,`, then names after `-` and `_` too and at spaces, numbers last. Where that is not enough, spare
columns are omitted, then columns are divided over several tables that each begin with the columns that name a row. A
pipe without COLUMNS gets each row as one line, for `grep`, unless a table is never divided: then all is WIDTH wide.
"""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from fp8bench.schema.errors import inert
from fp8bench.tables.document import Cells, Document, Heading, Note, Part, Table, Warned

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("markdown", "latex", "csv", "json")
"""Formats that a user may choose by name instead of a table."""

TERMINAL, PIPE = "terminal", "plain"

WIDTH, GAP = 80, 2
"""The width in characters of what is never divided in a pipe, and the gap between two columns of a table."""

BREAKS = tuple(re.compile(rf"(?= (?![^\[(]*[\])]))|(?<=[{ends}])(?=[^\d\s{ends}])") for ends in ("/:,", "/:,_-"))
NAME_BREAKS = re.compile(r"(?<=[/:,])(?=[^\d/:,])"), BREAKS[1]
"""Where texts and where names are folded, not within brackets; and where if that is not enough, names at spaces too."""

COLOURS = {"good": "green", "doubtful": "yellow", "bad": "red"}
STYLES = {"strong": "bold", "faint": "dim"}
LOOKS: dict[type, str] = {Heading: "bold", Note: "dim", Warned: "yellow"}

IN_MARKDOWN = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;"})
IN_LATEX = str.maketrans(
    {one: f"\\{one}" for one in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "|": "$|$", '"': "''", "±": r"$\pm$", "≈": r"$\approx$", "\u00d7": r"$\times$"}
)
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in a spreadsheet, with their full-width forms."""


def render(document: Document, form: str) -> str:
    """Return the complete text without its last line break. form: one of FORMATS, TERMINAL or PIPE. No text from a
    record can affect a terminal that shows it, or is interpreted as markdown, as LaTeX or as a formula.
    """
    if form == "json":
        return json.dumps(document.data, indent=2, allow_nan=False, default=lambda model: model.model_dump(mode="json"))
    if form == "csv":
        return _csv(document)
    if form in (TERMINAL, PIPE):
        return _text(document, form == TERMINAL)
    safe = latex if form == "latex" else markdown

    def text(part: Part) -> str:
        if not isinstance(part, Table):
            return safe(part.said)
        headings = [safe(f"{one.of}: {one.title}" if one.of else one.title) for one in part.columns]
        rows = [[safe(cell) for cell in cells] for cells in part.rows()]
        return tabulated(rows, part.columns, "latex_raw" if form == "latex" else "github", headings)

    return "\n\n".join("\n\n".join(map(text, block)) for block in document.blocks)


def _text(document: Document, on_terminal: bool) -> str:
    whole = any(isinstance(part, Table) and part.whole for block in document.blocks for part in block)
    columns, console = os.environ.get("COLUMNS", ""), None
    width = int(columns) if columns.isdigit() else WIDTH if whole else sys.maxsize
    if on_terminal:
        from rich.console import Console

        console = Console()
        width = console.width
    lines = TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)

    def folded(said: str) -> str:
        # A number and its per cent sign stay on one line.
        return lines.fill(inert(said).replace(" %", "\xa0%")).replace("\xa0", " ")

    def text(part: Part) -> str:
        if isinstance(part, Table):
            each = laid_out(part, width)
            return "\n\n".join("\n".join([drawn(one, console), *map(folded, omitted)]) for one, omitted in each)
        return _styled(folded(part.said), LOOKS.get(type(part), ""), console) if console else folded(part.said)

    return "\n\n".join("\n".join(map(text, block)) for block in document.blocks)


def laid_out(table: Table, width: int) -> Iterator[tuple[Table, list[str]]]:
    """Yield the tables, as many as the width needs, each with a line on what is omitted, if anything is."""
    table = drawn_of(table)
    needed = _narrowest([cells for cells in table.columns if not cells.spare], 1, numbers=False)
    whole = table.whole or (not table.numbered and _total(needed) <= width)
    for part in [table] if whole else divided(table, width):
        folded, omitted = fitted(part, width)
        names = ", ".join(heading.replace("\n", " ") for heading in omitted)
        yield folded, [f"No room for: {names}. A wider terminal or --format json shows more."] if names else []


def drawn(table: Table, console: "Console | None") -> str:
    """Return the table as lines. console: the terminal, which has colours."""
    if console is not None:
        return _on_terminal(table, console)
    headings = [cells.heading.split("\n") for cells in table.columns]
    height = max(map(len, headings))
    above = [*zip(*([""] * (height - len(lines)) + lines for lines in headings), strict=True)]
    rules, rows = ["-" * wide for wide in _widths(table.columns)], table.rows()
    return tabulated([*above, rules, *rows], table.columns)


def tabulated(
    rows: Sequence[Sequence[str]], columns: Sequence[Cells], form: str = "plain", headings: Sequence[str] = ()
) -> str:
    """Return the rows under each other, digit under digit in columns of numbers. form: one of tabulate's."""
    from tabulate import tabulate

    sides = ["right" if cells.numeric else "left" for cells in columns]
    text = tabulate(rows, headings, form, colalign=sides if rows else None, disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def markdown(text: str) -> str:
    """Escape the text so that it reads the same, but cannot end a cell or make a tag, a link or a picture."""
    return inert(text).translate(IN_MARKDOWN).replace("](", "]\\(")


def latex(text: str) -> str:
    """Escape the text so that it reads the same in LaTeX, with no package, and is no command."""
    return inert(text).translate(IN_LATEX).replace("--", "-{}-")


def drawn_of(table: Table) -> Table:
    """Return the table with inert text, the record of a column above its quantity in lines as short as possible."""
    headings = ("\n".join(map(inert, [*cells.of.split(), cells.title])) for cells in table.columns)
    columns = (
        cells._replace(heading=heading, unit="", of="", texts=tuple(map(inert, cells.texts)))
        for heading, cells in zip(headings, table.columns, strict=True)
    )
    return table._replace(columns=tuple(columns))


def fitted(table: Table, width: int) -> tuple[Table, tuple[str, ...]]:
    """Return the table folded into the width, wide headings first, then the widest; and headings without room."""
    columns, omitted = list(table.columns), list[str]()
    while _total(_narrowest(columns, 0, numbers=False)) > width and any(cells.spare for cells in columns):
        spare = max(place for place, cells in enumerate(columns) if cells.spare)
        omitted.insert(0, columns.pop(spare).heading)
    ways = [(level, _narrowest(columns, level, numbers)) for level, numbers in ((0, False), (1, False), (1, True))]
    level, least = next((way for way in ways if _total(way[1]) <= width), ways[-1])
    widths = _widths(columns)
    while _total(widths) > width and widths != least:
        able = (place for place, wide in enumerate(widths) if wide > least[place])
        widest = max(able, key=lambda place: (widths[place] > _width(columns[place].texts), widths[place]))
        widths[widest] -= 1
    for place, (cells, wide) in enumerate(zip(columns, widths, strict=True)):
        heading, *texts = (_folded(text, wide, _breaks(cells, level)) for text in (cells.heading, *cells.texts))
        columns[place] = cells._replace(heading=heading, texts=tuple(texts))
    return table._replace(columns=tuple(columns)), tuple(omitted)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _width(texts: Iterable[str]) -> int:
    return max((len(line) for text in texts for line in text.split("\n")), default=0)


def _widths(columns: Iterable[Cells]) -> list[int]:
    return [_width([cells.heading, *cells.texts]) for cells in columns]


def _breaks(cells: Cells, level: int) -> re.Pattern[str]:
    return (NAME_BREAKS if cells.kind == "word" else BREAKS)[level]


def _narrowest(columns: Sequence[Cells], level: int, numbers: bool) -> list[int]:
    def narrowest(cells: Cells) -> int:
        whole = cells.texts if cells.numeric and not numbers else ()
        folded = [cells.heading, *(() if whole else cells.texts)]
        return _width([*whole, *(_folded(text, 0, _breaks(cells, level)) for text in folded)])

    return [*map(narrowest, columns)]


def _folded(text: str, width: int, breaks: re.Pattern[str]) -> str:
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for piece in breaks.split(line):
            if lines[-1] and len(lines[-1] + piece) > width:
                lines.append(piece.strip())
            else:
                lines[-1] += piece
    return "\n".join(lines)


def divided(table: Table, width: int) -> list[Table]:
    """Return the table, or its columns divided over several tables that fit. Each begins with the row's number, if rows
    are numbered, and the columns that name it, and has at least one column in addition to these, however wide.
    """
    if _total(_widths(table.columns)) <= width:
        return [table]
    number = Cells("#", tuple(str(row) for row in range(1, table.height + 1)))
    named = [*([number] if table.numbered else []), *table.columns[: table.naming]]
    groups = [list(named)]
    for cells in table.columns[table.naming :]:
        if len(groups[-1]) > len(named) and _total(_widths([*groups[-1], cells])) > width:
            groups.append(list(named))
        groups[-1].append(cells)
    return [table._replace(columns=tuple(group)) for group in groups]


def _styled(text: str, style: str, console: "Console") -> str:
    from rich.text import Text

    with console.capture() as captured:
        console.print(Text(text, style), soft_wrap=True, end="")
    return captured.get()


def _on_terminal(table: Table, console: "Console") -> str:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    frame = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for cells in table.columns:
        side: Any = "right" if cells.numeric else "left"
        frame.add_column(Text(cells.heading), justify=side, overflow="fold", vertical="top")
    for row, (texts, style) in enumerate(zip(table.rows(), table.emphasis or repeat(""), strict=False)):
        tones = (COLOURS.get(cells.tones[row], "") if cells.tones else "" for cells in table.columns)
        frame.add_row(*map(Text, texts, tones), style=STYLES.get(style, ""))
    with console.capture() as captured:
        console.print(frame, end="")
    return captured.get().removesuffix("\n")


def _csv(document: Document) -> str:
    if document.lines is None:
        raise ValueError("this document has no lines")
    buffer = io.StringIO()
    lines = (document.lines.fields, *document.lines.rows)
    csv.writer(buffer, lineterminator="\n").writerows(map(csv_cell, line) for line in lines)
    return buffer.getvalue().rstrip("\n")


def csv_cell(value: Any) -> Any:
    """Make a value safe for a cell: text inert except for line breaks, with a leading `'` if a spreadsheet would
    compute it; lists, and names with values, joined by `; `. Numbers are unchanged, None is empty.
    """
    if isinstance(value, dict):
        return csv_cell([f"{name} {part}" for name, part in value.items() if part is not None])
    if isinstance(value, (list, tuple)):
        return "; ".join(str(csv_cell(item)) for item in value)
    if not isinstance(value, str):
        return value
    text = "\n".join(map(inert, value.split("\n")))
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text


def progress_bars() -> Any:
    """Return bars on standard error for tasks with the fields `what` runs and the `median` of its steps, in words."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    what, stage, median = "{task.fields[what]}", "[dim]{task.description}", "{task.fields[median]}"
    columns = SpinnerColumn(), what, stage, BarColumn(bar_width=16), MofNCompleteColumn(), median, TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
