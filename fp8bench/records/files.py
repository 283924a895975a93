"""Where records may lie, which is every `.json` file below a folder of results, and the files there that are none."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import fault, wrong_field
from fp8bench.schema.record import SCHEMA_VERSION

SUFFIX = ".json"


@dataclass(frozen=True)
class Broken:
    """A file or folder among records that cannot be read. line: from 1; None: all of it. error: the same as `reason`,
    to raise where this very file was named.
    """

    path: Path
    line: int | None
    reason: str
    error: UsageError

    def __str__(self) -> str:
        """One line, with the file, the line and the reason."""
        return self.error.what


def unreadable(path: Path, error: OSError) -> Broken:
    """A file or folder that the system refuses to open."""
    reason = error.strerror or str(error)
    return Broken(path, None, reason, UsageError(f"cannot read {path}: {reason}", "Check its name and its permissions"))


def newer(path: Path, version: int) -> Broken:
    """A record of a later fp8bench."""
    reason = f"has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}"
    return Broken(path, None, reason, UsageError(f"{path} {reason}", "Upgrade fp8bench, or move the file away"))


def invalid(path: Path, error: ValidationError, text: str) -> Broken:
    """A file whose text is not JSON, or not that of a record. text: as in the file, line by line."""
    return Broken(path, *fault(error, text), wrong_field(error, path, text))


def no_samples(path: Path) -> Broken:
    """A measurement that is ok and has no samples."""
    reason = "field samples: a measured record with status ok has samples"
    return Broken(path, 1, reason, UsageError(f"{path} line 1, {reason}", "Fix that field, or move the file away"))


def of_the_future(path: Path, created: datetime) -> Broken:
    """A record of a machine whose clock was wrong."""
    reason = f"is dated {created:%Y-%m-%d}, which is in the future"
    remedy = "Correct its created_utc, or move the file away"
    return Broken(path, None, reason, UsageError(f"{path} {reason}", remedy))


def record_files(*roots: Path) -> Iterator[Path | Broken]:
    """The files below the roots, folder by folder, by name; for a folder that cannot be read, why.

    Hidden files are omitted, among them those that are still being written. Links to folders are followed, each folder
    is searched once, and a missing root is empty.
    """
    seen: set[str] = set()
    for root in filter(Path.is_dir, roots):
        failed: list[OSError] = []
        for folder, inner, names in os.walk(root, onerror=failed.append, followlinks=True):
            place = os.path.realpath(folder)
            if place in seen:
                inner.clear()
                continue
            seen.add(place)
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            visible = (name for name in names if name.endswith(SUFFIX) and not name.startswith("."))
            yield from (Path(folder, name) for name in sorted(visible))
        yield from (unreadable(Path(error.filename), error) for error in failed)
