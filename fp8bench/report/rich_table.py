"""The frame that every table in a terminal has."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def empty_table(columns: Iterable[tuple[str, bool]] = (), collapse_padding: bool = False) -> "Table":
    """columns: a heading, and whether numbers stand under it, which go to the right. A long cell is folded, and a
    heading is text and no markup.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=collapse_padding)
    for heading, numeric in columns:
        table.add_column(Text(heading), justify="right" if numeric else "left", overflow="fold")
    return table
