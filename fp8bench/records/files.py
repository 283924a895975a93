"""Finds where records may be: any `.json` file below a folder of results. Describes those that cannot be read."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import fault

SUFFIX, SAMPLES_SUFFIX = ".json", ".samples.json"


def samples_path(path: Path, run_id: str | None = None) -> Path:
    """Return where a record's raw part lies. run_id: if its file may have another name. Raises ValueError."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX) if run_id is None else run_id}{SAMPLES_SUFFIX}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in words, as a UsageError, what keeps the block from writing to the folder of results."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another --results-dir") from error


@dataclass(frozen=True)
class Broken:
    """A file or folder that is left out. line: from 1. readable: could be read. what: for path, line and reason."""

    path: Path
    reason: str
    remedy: str = "Fix it, or move the file away"
    line: int | None = None
    readable: bool = False
    what: str = ""

    def __str__(self) -> str:
        at = f" line {self.line}" if self.line is not None else ""
        comma = "," if self.reason.startswith("field ") else ""
        return self.what or f"{self.path}{at}{comma} {self.reason}"

    @property
    def error(self) -> UsageError:
        """The error to raise if this very file was named."""
        return UsageError(str(self), self.remedy)

    @property
    def told(self) -> str:
        """The same line with what became of the file."""
        return f"{'left out' if self.readable else 'not read'}: {self}"


def unreadable(path: Path, error: OSError) -> Broken:
    """Return the fault of a file or folder that the system refuses to open."""
    reason = error.strerror or str(error)
    return Broken(path, reason, "Check its name and its permissions", what=f"cannot read {path}: {reason}")


def invalid(path: Path, error: ValidationError, text: str) -> Broken:
    """Return the fault of a file whose text is not JSON, or not a record's. text: as in the file, line by line."""
    line, reason = fault(error, text)
    return Broken(path, reason, "Fix that field, or move the file away", line)


def strayed(path: Path, instance: str, there: Collection[str]) -> Broken | None:
    """Return the fault of a record in the folder of another instance. there: that the folder's records name."""
    folder = path.parent.name or path.absolute().parent.name
    if folder == instance or folder not in there:
        return None
    reason = f"contradicts its folder: its instance is {instance}, and the folder is that of {folder}"
    return Broken(path, reason, f"Move it to the folder {instance}, or away", readable=True)


def is_record(name: str) -> bool:
    """Return whether a file of this name may be a record; what lies beside one is not."""
    return name.endswith(SUFFIX) and not name.endswith(SAMPLES_SUFFIX)


def record_files(*roots: Path) -> Iterator[Path | Broken]:
    """Yield the records below the roots, by folder and name, and why a folder cannot be read. What is hidden, as files
    still being written, is omitted. Links are followed, each folder is searched once, and a root may be missing.
    """
    seen: set[str] = set()
    for root in filter(Path.is_dir, roots):
        failed: list[OSError] = []
        for folder, inner, names in os.walk(root, onerror=failed.append, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                inner.clear()
                continue
            seen.add(real)
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            yield from (Path(folder, name) for name in sorted(names) if is_record(name) and not name.startswith("."))
        yield from (unreadable(Path(error.filename), error) for error in failed)
