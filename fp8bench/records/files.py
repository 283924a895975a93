"""Says which files may be records, and describes those that cannot be read or written."""

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
    """Return whether a file of this name may be a record, and not hidden, half written, or what lies beside one."""
    return name.endswith(SUFFIX) and not name.endswith(SAMPLES_SUFFIX) and not name.startswith(".")
