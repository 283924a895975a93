"""Where a page or a plot goes: never onto a file that is there, unless the user says so."""

from pathlib import Path

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import write_atomically

REPLACE = "Name another file, or say --force to replace it"


def require_place(path: Path, force: bool) -> None:
    """Before anything is computed. Raises UsageError where the file cannot go there."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", f"Make it with `mkdir -p {path.parent}`, or name another")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", REPLACE)


def write_text(path: Path, text: str, force: bool) -> None:
    """All of it or nothing. Raises UsageError where a file has come there since, RunFailed where it cannot be kept."""
    try:
        write_atomically(path, text, replace=force)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", REPLACE) from error
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror}", "Name another file with -o") from error
