"""Documents as text, one module a format. A new format is one module and its line here.

Each module has `render(document) -> str`. A module is imported when its format is requested.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8bench.report.document import Document

FORMATS = ("markdown", "csv", "json")
"""What a user may choose by name, beside a table."""

TERMINAL, PIPE = "terminal", "plain"
"""A table for whom."""


def render(document: "Document", form: str) -> str:
    """The whole text, without its last line break. form: one of FORMATS, TERMINAL or PIPE."""
    text: str = import_module(f"{__name__}.{form}").render(document)
    return text
