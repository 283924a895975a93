"""A document as GitHub's markdown: every text is a paragraph of its own."""

from fp8bench.report.document import Column, Document
from fp8bench.report.render.plain import written
from fp8bench.schema.errors import inert

_ESCAPED = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;"})


def render(document: Document) -> str:
    """Return the document as markdown. No text from a record is interpreted as markdown."""
    return written(document, "github", "\n\n", markdown, _headings)


def markdown(text: str) -> str:
    """Escape the text so that it reads the same, but cannot end a cell or make a tag, a link or a picture."""
    return inert(text).translate(_ESCAPED).replace("](", "]\\(")


def _headings(columns: tuple[Column, ...]) -> list[str]:
    return [markdown(f"{column.of}: {column.title}" if column.of else column.title) for column in columns]
