"""A document as plain text, for a pipe or a file."""

from collections.abc import Callable, Sequence

from fp8bench.report.document import Column, Document, Part, Table, Warned
from fp8bench.schema.errors import inert

SOFT_HYPHEN = "\u00ad"

Headings = Callable[[tuple[Column, ...]], list[str]]


def render(document: Document) -> str:
    """What comes from a record can do nothing to a terminal that it is sent to."""
    return written(document, "simple", "\n", inert, stacked)


def written(document: Document, form: str, between: str, safe: Callable[[str], str], headings: Headings) -> str:
    """form: tabulate's name. between: the parts of a block. safe: makes text from elsewhere harmless."""

    def part_text(part: Part) -> str:
        if isinstance(part, Table):
            return _table(part, form, safe, headings)
        return safe(f"warning: {part.text}" if isinstance(part, Warned) else part.text)

    return "\n\n".join(between.join(map(part_text, block)) for block in document.blocks)


def _table(table: Table, form: str, safe: Callable[[str], str], headings: Headings) -> str:
    from tabulate import tabulate

    text: str = tabulate(
        [[safe(cell) for cell in cells] for cells in table.cells()],
        headers=[heading.replace(SOFT_HYPHEN, "") for heading in headings(table.columns)],
        tablefmt=form,
        colalign=["right" if column.numeric else "left" for column in table.columns],
        disable_numparse=True,
    )
    return text


def stacked(columns: Sequence[Column]) -> list[str]:
    """What a column is of stands over its quantity, in lines as short as they can be, so that a long name widens no
    narrow column. All as high as the highest, filled from above.
    """
    headings = ["\n".join(map(inert, [*column.of.split(), column.title])) for column in columns]
    height = max(heading.count("\n") for heading in headings)
    return ["\n" * (height - heading.count("\n")) + heading for heading in headings]
