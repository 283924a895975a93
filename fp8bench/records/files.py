"""Finds where records may be: any `.json` file below a folder of results. Describes those that cannot be read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fp8bench.schema.errors import UsageError

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
    """A file or folder that is left out. readable: could be read."""

    path: Path
    reason: str
    remedy: str = "Fix it, or move the file away"
    readable: bool = False

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"

    @property
    def told(self) -> str:
        """The same line with what became of the file."""
        return f"{'left out' if self.readable else 'not read'}: {self}"


def unreadable(path: Path, error: OSError) -> Broken:
    """Return the fault of a file or folder that the system refuses to open."""
    return Broken(path, f"cannot be read: {error.strerror or error}", "Check its name and its permissions")


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
