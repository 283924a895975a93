"""A document as GitHub's markdown: everything in a paragraph of its own."""

from fp8bench.report.document import Column, Document
from fp8bench.report.render.plain import written
from fp8bench.schema.errors import inert

_ESCAPED = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;"})


def render(document: Document) -> str:
    """What comes from a record cannot be read as markdown."""
    return written(document, "github", "\n\n", markdown, _headings)


def markdown(text: str) -> str:
    """As it is read, with nothing in it that ends a cell or makes a tag, a link or a picture."""
    return inert(text).translate(_ESCAPED).replace("](", "]\\(")


def _headings(columns: tuple[Column, ...]) -> list[str]:
    return [markdown(f"{column.of}: {column.title}" if column.of else column.title) for column in columns]
