"""Documents as text, one module for each format. A new format needs a module and an entry here.

Each module has `render(document) -> str`. A module is imported when its format is requested.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8bench.report.document import Document

FORMATS = ("markdown", "csv", "json")
"""Formats that a user may choose by name instead of a table."""

TERMINAL, PIPE = "terminal", "plain"
"""The forms of a table, for a terminal and for a pipe."""


def render(document: "Document", form: str) -> str:
    """Return the complete text without its last line break. form: one of FORMATS, TERMINAL or PIPE."""
    text: str = import_module(f"{__name__}.{form}").render(document)
    return text
