"""A document as plain text, for a pipe or a file."""

from collections.abc import Callable, Sequence

from fp8bench.report.document import Column, Document, Part, Table, Warned
from fp8bench.report.render.aligned import Form, aligned
from fp8bench.report.render.fold import folded
from fp8bench.schema.errors import inert

SOFT_HYPHEN = "\u00ad"

Headings = Callable[[tuple[Column, ...]], list[str]]


WIDTH, GAP = 80, 2
"""The width in characters of a table that is never divided, and the gap between two of its columns."""


def render(document: Document) -> str:
    """Return the document as text. No text from a record can affect a terminal that shows it."""
    return written(document, "simple", "\n", inert, stacked, _fitting)


def _fitting(table: Table) -> str:
    """Write a table in WIDTH characters, followed by a line that names the columns that did not fit."""
    fitted = folded(table, WIDTH, GAP)
    columns = fitted.table.columns
    heading = _line_by_line([column.heading for column in columns], from_below=True)
    rows = [line for cells in fitted.table.cells() for line in _line_by_line(cells)]
    rules = ["-" * max(map(len, lines)) for lines in zip(*heading, *rows, strict=True)]
    right = [column.numeric for column in columns]
    return "\n".join([aligned([*heading, rules, *rows], right, "plain"), *omission(fitted.omitted)])


def _line_by_line(cells: Sequence[str], from_below: bool = False) -> list[list[str]]:
    """Return each line of a row whose cells have several. from_below: align shorter cells at the bottom."""
    lines = [cell.split("\n") for cell in cells]
    height = max(map(len, lines))
    filled = [
        [*[""] * (height - len(one)), *one] if from_below else [*one, *[""] * (height - len(one))] for one in lines
    ]
    return [list(line) for line in zip(*filled, strict=True)]


def omission(titles: Sequence[str]) -> list[str]:
    return [f"No room for: {', '.join(titles)}. A wider terminal or --columns shows more."] if titles else []


def written(
    document: Document,
    form: Form,
    between: str,
    safe: Callable[[str], str],
    headings: Headings,
    whole: Callable[[Table], str] | None = None,
) -> str:
    """Return the document as text. form: of its tables. between: separates the parts of a block. safe: makes text from
    elsewhere harmless. whole: writes a table that is never divided; None: such a table is written like any other.
    """

    def part_text(part: Part) -> str:
        if isinstance(part, Table):
            return whole(part) if whole and part.whole else _table(part, form, safe, headings)
        return safe(f"warning: {part.text}" if isinstance(part, Warned) else part.text)

    return "\n\n".join(between.join(map(part_text, block)) for block in document.blocks)


def _table(table: Table, form: Form, safe: Callable[[str], str], headings: Headings) -> str:
    rows = [[safe(cell) for cell in cells] for cells in table.cells()]
    titles = [heading.replace(SOFT_HYPHEN, "") for heading in headings(table.columns)]
    return aligned(rows, [column.numeric for column in table.columns], form, titles)


def stacked(columns: Sequence[Column]) -> list[str]:
    """Return headings with the record of a column above its quantity, in lines as short as possible, so that a long
    name does not widen a narrow column. All headings have as many lines as the highest, filled from above.
    """
    headings = ["\n".join(map(inert, [*column.of.split(), column.title])) for column in columns]
    height = max(heading.count("\n") for heading in headings)
    return ["\n" * (height - heading.count("\n")) + heading for heading in headings]
