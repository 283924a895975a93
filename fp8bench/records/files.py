"""Finds where records may be: any `.json` file below a folder of results. Describes those that cannot be read."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import fault, refused
from fp8bench.schema.record import SCHEMA_VERSION

SUFFIX, SAMPLES_SUFFIX = ".json", ".samples.json"


def samples_path(path: Path, run_id: str | None = None) -> Path:
    """Return where the raw part of a record lies. path: of the record. run_id: if its file may have another name.
    Raises ValueError for a run id that is no name.
    """
    return path.with_name(f"{path.name.removesuffix(SUFFIX) if run_id is None else run_id}{SAMPLES_SUFFIX}")


@dataclass(frozen=True)
class Broken:
    """A file or folder among records that cannot be read. line: from 1; None for all of it. error: the same as
    `reason`, to raise if this very file was named. readable: whether it could be read, and is left out all the same.
    """

    path: Path
    line: int | None
    reason: str
    error: UsageError
    readable: bool = False

    def __str__(self) -> str:
        """Return one line with the file, the line and the reason."""
        return self.error.what

    @property
    def told(self) -> str:
        """The same line with what became of the file."""
        return f"{'left out' if self.readable else 'not read'}: {self}"


def unreadable(path: Path, error: OSError) -> Broken:
    """Return the fault of a file or folder that the system refuses to open."""
    reason = error.strerror or str(error)
    return Broken(path, None, reason, UsageError(f"cannot read {path}: {reason}", "Check its name and its permissions"))


def newer(path: Path, version: int) -> Broken:
    """Return the fault of a record of a later fp8bench."""
    reason = f"has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}"
    return Broken(path, None, reason, UsageError(f"{path} {reason}", "Upgrade fp8bench, or move the file away"))


def invalid(path: Path, error: ValidationError, text: str) -> Broken:
    """Return the fault of a file whose text is not JSON, or not a record's. text: as in the file, line by line."""
    line, reason = fault(error, text)
    return Broken(path, line, reason, refused(path, line, reason))


AHEAD = timedelta(days=1)
"""How far clocks may differ."""


def of_the_future(path: Path, created: datetime) -> Broken | None:
    """Return the fault of a record dated later than now, which would hide all others as the latest one forever."""
    now = datetime.now(UTC)
    if created - now <= AHEAD:
        return None
    reason = f"field created_utc: {created:%Y-%m-%d} is later than today, {now:%Y-%m-%d}, by this machine's clock"
    return Broken(path, None, reason, UsageError(f"{path}, {reason}", "Correct the clock, or move the file away"))


def no_samples(path: Path) -> Broken:
    """Return the fault of a measurement that is ok and has no samples, or has them in its own file."""
    reason = "field samples: a measured record with status ok has samples, and they lie beside it"
    return Broken(path, 1, reason, UsageError(f"{path} line 1, {reason}", "Fix that field, or move the file away"))


def without_samples(path: Path, why: str) -> Broken:
    """Return the fault of a record whose samples do not lie beside it. why: beginning with their name."""
    reason = f"lacks its samples: {why}"
    return Broken(
        path, None, reason, UsageError(f"{path} {reason}", "Restore that file, or move the record away"), True
    )


def contradictory(path: Path, found: Sequence[str]) -> Broken:
    """Return the fault of a record that contradicts itself. found: in what, in words; at least one."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    reason = f"contradicts itself: {found[0]}{more}"
    return Broken(path, None, reason, UsageError(f"{path} {reason}", "Measure again, or move the file away"), True)


def strayed(path: Path, instance: str, there: Collection[str]) -> Broken | None:
    """Return the fault of a record in the folder of another instance. there: the instances that records in its folder
    name. A folder that none of them has the name of is no instance's.
    """
    folder = path.parent.name or path.absolute().parent.name
    if folder == instance or folder not in there:
        return None
    reason = f"contradicts its folder: its instance is {instance}, and the folder is that of {folder}"
    error = UsageError(f"{path} {reason}", f"Move it to the folder {instance}, or away")
    return Broken(path, None, reason, error, True)


def is_record(name: str) -> bool:
    """Return whether a file of this name may be a record; what lies beside one is not."""
    return name.endswith(SUFFIX) and not name.endswith(SAMPLES_SUFFIX)


def record_files(*roots: Path) -> Iterator[Path | Broken]:
    """Yield the records below the roots, folder by folder, by name; for a folder that cannot be read, yield why.

    Hidden files are omitted, including those that are still being written. Links to folders are followed, each folder
    is searched once, and a missing root counts as empty.
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
            visible = (name for name in names if is_record(name) and not name.startswith("."))
            yield from (Path(folder, name) for name in sorted(visible))
        yield from (unreadable(Path(error.filename), error) for error in failed)
