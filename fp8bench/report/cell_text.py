"""Text of a record where a format could obey it: in a terminal, a markdown table, a csv cell. Everything that a table
prints goes through here, since modes, instances, reasons and marks may come from anywhere.
"""

from collections.abc import Callable
from typing import Any

from fp8bench.schema.plain_text import inert

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula, its full-width forms too."""

_MARKDOWN = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;"})


def markdown(text: str) -> str:
    """As it is read, with nothing in it that ends a cell or makes a tag, a link or a picture."""
    return inert(text).translate(_MARKDOWN).replace("](", "]\\(")


def safe_in(form: str) -> Callable[[str], str]:
    """form: `github` or `simple`, tabulate's names."""
    return markdown if form == "github" else inert


def csv_cell(value: Any) -> Any:
    """Text is made inert, but for its line breaks, which csv can hold; a text that a spreadsheet would compute begins
    with `'`; lists, and names with values, are joined by `; `. Numbers stay as they are.
    """
    if isinstance(value, dict):
        return csv_cell([f"{name} {part}" for name, part in value.items() if part is not None])
    if isinstance(value, (list, tuple)):
        return "; ".join(str(csv_cell(item)) for item in value)
    if not isinstance(value, str):
        return value
    text = "\n".join(map(inert, value.split("\n")))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
