"""A step's breakdown as text: a table in a terminal, plain text, markdown or json. Looks only; the numbers are in
`explain`.

A time is followed by its share of that mode's step. Where there are two modes, the last column is the first's time less
the second's.
"""

import json
from typing import Any

from fp8bench.report.cell_text import safe_in
from fp8bench.report.explain import Explained, Line, lines
from fp8bench.report.rich_table import empty_table
from fp8bench.schema.plain_text import inert

NOTHING = "-"
SMALLEST_S = 0.5e-4
"""Half of the last digit that is shown: a line below it in every mode is left out."""


def to_json(explained: Explained) -> str:
    """The modes with every number unrounded, the cause, its sentence, what each accounts for, notes and warnings."""
    return json.dumps(explained.model_dump(mode="json"), indent=2)


def to_markdown(explained: Explained) -> str:
    """A GitHub table, the sentence under it."""
    return _with_tabulate(explained, "github")


def to_plain(explained: Explained) -> str:
    """A table for a pipe or a file, the sentence under it."""
    return _with_tabulate(explained, "simple")


def _with_tabulate(explained: Explained, form: str) -> str:
    from tabulate import tabulate

    safe = safe_in(form)
    headings = _headings(explained)
    table = tabulate(
        [_cells(line, explained) for line in _shown(explained)],
        headers=[*map(safe, headings)],
        tablefmt=form,
        colalign=["left", *["right"] * (len(headings) - 1)],
        disable_numparse=True,
    )
    said = (explained.sentence, *explained.notes, *(f"warning: {warning}" for warning in explained.warnings))
    return "\n\n".join([table, *map(safe, said)])


def print_rich(explained: Explained) -> None:
    """To the terminal. A time longer than the reference's is red, a shorter one green."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    table = empty_table(collapse_padding=True)
    for place, heading in enumerate(_headings(explained)):
        # In lines of their own, mode, recipe and unit leave room for two modes in 80 columns.
        folded = inert(heading).replace(":", ":\n").replace(", ms", "\nms").replace("difference", "differ-\nence")
        table.add_column(folded, justify="right" if place else "left", no_wrap=not place, overflow="fold")
    for line in _shown(explained):
        *cells, last = _cells(line, explained)
        table.add_row(*map(Text, cells), Text(last, style=_colour(line)), style="bold" if line.total else "")
    console.print(table)
    console.print(Text(inert(explained.sentence)))
    for note in explained.notes:
        console.print(Text(inert(note), style="dim"))


def _headings(explained: Explained) -> list[str]:
    headings = ["part of a step"]
    for mode in explained.modes:
        headings += [f"{mode.label}, ms", "share"]
    return [*headings, "difference, ms"] if len(explained.modes) > 1 else headings


def _shown(explained: Explained) -> list[Line]:
    return [line for line in lines(explained.modes) if max(seconds or 0.0 for seconds in line.seconds) >= SMALLEST_S]


def _cells(line: Line, explained: Explained) -> list[str]:
    cells = [line.name]
    for mode, seconds in zip(explained.modes, line.seconds, strict=True):
        cells += [f"{seconds * 1e3:.1f}", f"{seconds / mode.length_s * 100:.1f} %"] if seconds else [NOTHING, NOTHING]
    if len(line.seconds) > 1:
        difference = _difference(line)
        cells.append(NOTHING if difference is None else _signed(difference))
    return cells


def _signed(seconds: float) -> str:
    return "0.0" if abs(seconds) < SMALLEST_S else f"{seconds * 1e3:+.1f}"


def _difference(line: Line) -> float | None:
    if len(line.seconds) < 2 or line.seconds[0] is None or line.seconds[1] is None:
        return None
    return line.seconds[0] - line.seconds[1]


def _colour(line: Line) -> Any:
    difference = _difference(line)
    if difference is None or abs(difference) < SMALLEST_S:
        return ""
    return "red" if difference > 0 else "green"
