"""A document line by line for spreadsheets and scripts; numbers are not rounded, and null is empty."""

import csv
import io
from typing import Any

from fp8bench.report.document import Document
from fp8bench.schema.errors import inert

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in a spreadsheet, with their full-width forms."""


def render(document: Document) -> str:
    """Return the lines of a document as csv. Raises ValueError if the document has none."""
    if document.lines is None:
        raise ValueError("this document has no lines")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(csv_cell, document.lines.fields))
    writer.writerows(map(csv_cell, row) for row in document.lines.rows)
    return buffer.getvalue().rstrip("\n")


def csv_cell(value: Any) -> Any:
    """Make a value safe for a cell. Text is made inert except for its line breaks, which csv can hold; a text that a
    spreadsheet would compute gets a leading `'`; lists, and names with values, are joined by `; `. Numbers are
    unchanged.
    """
    if isinstance(value, dict):
        return csv_cell([f"{name} {part}" for name, part in value.items() if part is not None])
    if isinstance(value, (list, tuple)):
        return "; ".join(str(csv_cell(item)) for item in value)
    if not isinstance(value, str):
        return value
    text = "\n".join(map(inert, value.split("\n")))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
