"""What commands share: results on standard output, lines on standard error, and the catalogue with users' files."""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer

from fp8bench.schema.errors import RunFailed, UsageError, inert, writing
from fp8bench.tables import render
from fp8bench.tables.document import Hint

if TYPE_CHECKING:
    from pathlib import Path

    from fp8bench.records.files import Folders
    from fp8bench.schema.config import RunConfig
    from fp8bench.schema.instance import Catalog
    from fp8bench.schema.record import Record
    from fp8bench.tables.document import Document


FULL = (errno.ENOSPC, errno.EDQUOT)
OF_OUTPUT = (*FULL, errno.EBADF, errno.EIO, errno.EFBIG)
"""Errors of standard output, if they name no file."""


def of_output(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.filename is None and error.errno in OF_OUTPUT


@contextmanager
def shown_after_keeping(kept: str, command: str) -> "Iterator[None]":
    """If the output cannot be written, say that nothing is lost: what is kept where, and the command that shows it."""
    try:
        yield
    except OSError as error:
        if not of_output(error):
            raise
        what = f"cannot write the output: {error.strerror or error}; {kept}"
        raise RunFailed(what, f"Show it with `{command}`") from error


def log(line: str) -> None:
    print(f"fp8bench: {inert(line)}", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    log(f"warning: {line}")


def load_catalog(results_dir: "Folders") -> "Catalog":
    """Return the catalogue with the readable files in the folders of results; for the others see `require_read`."""
    from fp8bench.pricing.catalog import load_beside
    from fp8bench.records import instances
    from fp8bench.records.files import folders_of

    return load_beside(path for folder in folders_of(results_dir) for path in instances.files(folder))


def require_read(catalog: "Catalog", keys: Iterable[str]) -> None:
    """Raise UsageError for an unreadable file of one of these instances; other unreadable files are only logged."""
    from fp8bench.pricing import catalog as catalogs

    catalogs.require_read(catalog, keys)
    for unread in catalog.unread:
        warn(f"not read: {unread.what}")


def show(document: "Document", form: str, repeat: bool = True) -> None:
    """Print a document, as a table drawn on a terminal, and log its warnings, but no text twice to one reader.
    repeat: whether standard error has the warnings of a text too.
    """
    if form == "answer":
        document, form = document._replace(data=document.answer), "json"
    if form == "table":
        form = render.TERMINAL if sys.stdout.isatty() else render.PIPE
    typer.echo(render.render(document, form))
    for text in document.told(Hint) if form in ("json", "csv") else ():
        log(text)
    for text in () if read_already(form) or not (repeat or form in ("json", "csv")) else document.warnings:
        warn(text)


def read_already(form: str) -> bool:
    """Return whether who reads standard error has read the text of this form: both streams are one pipe, or file."""
    # What stands in for a stream may have no number.
    with suppress(OSError, AttributeError):
        streams = (os.fstat(one.fileno()) for one in (sys.stdout, sys.stderr))
        return form not in ("json", "csv") and os.path.samestat(*streams)
    return False


def draw(document: "Document", name: str, path: "Path | None") -> None:
    """Draw the document's figure of this name, if a path was given and there is anything to draw."""
    if path is not None and name in document.figures:
        document.figures[name](path)
        log(f"drawn as {path}")


EMIT = "Name another file with --emit"


def require_script(path: "Path | None", configs: "Iterable[RunConfig]") -> None:
    """Raise UsageError unless a script of each configuration can be written to a new file. path: None for no script."""
    if path is None:
        return
    if path.exists() or not path.parent.is_dir():
        raise UsageError(f"{path} exists" if path.exists() else f"there is no folder {path.parent}", EMIT)
    from fp8bench.kinds.run import script

    for config in configs:
        script.require_writable(config)


def write_script(path: "Path | None", records: "Iterable[Record]") -> None:
    """Write the script of the record that takes the least time a unit. Raises RunFailed if the disk refuses it."""
    if path is None:
        return
    from fp8bench.kinds.run import script
    from fp8bench.schema.files import write_atomically
    from fp8bench.stats.steps import step_times

    timed = [(step_times(one), one.summary, one.config, one) for one in records if one.status == "ok"]
    fastest = [(t.mean_s / s.units_per_step, c.switched_label, one) for t, s, c, one in timed if t and s and c]
    if fastest:
        _, label, best = min(fastest, key=lambda one: one[0])
        with writing(path, EMIT):
            write_atomically(path, script.script(best), replace=False)
        log(f"{label} as a training script: {path}")
