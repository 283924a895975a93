"""A file that lies among records and cannot be read as one: which, where in it, and why."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import fault, wrong_field
from fp8bench.schema.record import SCHEMA_VERSION


@dataclass(frozen=True)
class Broken:
    """line: from 1; None where the whole file or folder is meant. reason: what is wrong there. error: the same for
    whoever asked for this very file.
    """

    path: Path
    line: int | None
    reason: str
    error: UsageError

    def __str__(self) -> str:
        """One line, with the file, the line and the reason."""
        return self.error.what


def unreadable(path: Path, error: OSError) -> Broken:
    """A file or folder that the system does not give."""
    reason = error.strerror or str(error)
    return Broken(path, None, reason, UsageError(f"cannot read {path}: {reason}", "Check its name and its permissions"))


def newer(path: Path, version: int) -> Broken:
    """A record of a later fp8bench."""
    reason = f"has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}"
    return Broken(path, None, reason, UsageError(f"{path} {reason}", "Upgrade fp8bench, or move the file away"))


def invalid(path: Path, error: ValidationError, text: str) -> Broken:
    """A file whose text is not JSON, or not that of a record. text: with its lines where they stand in the file."""
    return Broken(path, *fault(error, text), wrong_field(error, path, text))


def no_samples(path: Path) -> Broken:
    """A measurement that is ok and has nothing to show for it."""
    reason = "field samples: a measured record with status ok has samples"
    return Broken(path, 1, reason, UsageError(f"{path} line 1, {reason}", "Fix that field, or move the file away"))
