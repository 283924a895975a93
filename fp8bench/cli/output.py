"""Results on standard output, in the format that was asked for.

Each module of looks (report.tables, report.gemm_text, ...) writes under the same names: `to_json`, `to_csv` and
`to_markdown` where it has them, `to_plain` for a pipe and `print_rich` for a terminal.
"""

import sys
from types import ModuleType
from typing import Any

import typer


def show(looks: ModuleType, form: str, *what: Any) -> None:
    """form: `table`, or one of the formats that `looks` writes. what: handed on to it."""
    if form != "table":
        typer.echo(getattr(looks, f"to_{form}")(*what))
    elif sys.stdout.isatty():
        looks.print_rich(*what)
    else:
        typer.echo(looks.to_plain(*what))
