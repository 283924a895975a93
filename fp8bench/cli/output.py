"""Results on standard output, in the format that was asked for, and their warnings on standard error."""

import sys
from typing import TYPE_CHECKING

import typer

from fp8bench.cli.progress import log, warn
from fp8bench.report import render

if TYPE_CHECKING:
    from pathlib import Path

    from fp8bench.report.document import Document

FORMATS = ("table", *render.FORMATS)
FORMATS_OF_TABLES = tuple(form for form in FORMATS if form != "csv")
"""Of a document that has no lines for csv."""


def show(document: "Document", form: str) -> None:
    """form: one of FORMATS; `table` is drawn in a terminal, and plain text elsewhere."""
    if form == "table":
        form = render.TERMINAL if sys.stdout.isatty() else render.PIPE
    typer.echo(render.render(document, form))
    for text in document.warnings:
        warn(text)


def draw(document: "Document", name: str, path: "Path | None") -> None:
    """The document's figure of this name, where a path was given and there is anything to draw."""
    figure = None if path is None else document.figure(name)
    if path is not None and figure is not None:
        figure.draw(path)
        log(f"drawn as {path}")
