"""Says which files may be records, describes those that cannot be read or written, and lets one process write at once.

A lock is the kernel's, on a file: it is released however its holder ends. The file's existence locks nothing; it names
the holder for a second process, and what a killed process left behind is taken over.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fp8bench.schema import errors
from fp8bench.schema.errors import UsageError

SUFFIX, SAMPLES_SUFFIX = ".json", ".samples.json"
Folders = Path | Sequence[Path]  # A folder of results, or several that are searched together


def folders_of(results: Folders) -> tuple[Path, ...]:
    return (results,) if isinstance(results, Path) else tuple(results)


def samples_path(path: Path, run_id: str | None = None) -> Path:
    """Return where a record's raw part lies. run_id: if its file may have another name. Raises ValueError."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX) if run_id is None else run_id}{SAMPLES_SUFFIX}")


writing = partial(errors.writing, remedy="Choose another --results-dir", refusal=UsageError)
"""Says in words, as a UsageError, what keeps the block from writing to the folder of results."""


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


POLL_S = 0.05
UNKNOWN_TO_THE_FILE_SYSTEM = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})


@contextmanager
def held(path: Path, what: str, remedy: str, warn: Callable[[str], None], wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock on `path`. what: is locked, in words. wait_s: for its holder. warn: called if the file system has
    no locks; the work is done all the same. Raises UsageError that names the holder, or if there can be no file.
    """
    descriptor = _locked(path, what, remedy, time.monotonic() + wait_s)
    if descriptor is None:
        warn(f"warning: {path.parent} is on a file system without locks: make sure that no other process uses {what}")
        yield
        return
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    try:
        yield
    finally:
        # Removed while it is locked: a waiting process then sees that the name belongs to another file or to none.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, what: str, remedy: str, deadline: float) -> int | None:
    while True:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            if time.monotonic() >= deadline:
                holder = f"process {text}" if text.isdecimal() else "another process"
                raise UsageError(f"{what} is in use by {holder}", remedy) from None
            time.sleep(POLL_S)
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            if error.errno not in UNKNOWN_TO_THE_FILE_SYSTEM:
                raise UsageError(f"cannot lock {path}: {error.strerror}", "Choose another --results-dir") from error
            return None
        else:
            # Its holder may have removed the file meanwhile: then the name belongs to a new one, or to none.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)
