"""Folders for temporary files. One that was left by a killed process is removed when the next one is made."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# How the names of such folders begin: those that ranks share, and those of doctor's probes.
PREFIXES = RANKS, DOCTOR = "fp8bench-ranks-", "fp8bench-doctor-"
# A folder that was changed more recently may still be in the making.
LEFT_S = 60.0


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Make a folder, remove it at the end, and before it what killed processes left. Raises OSError for no room."""
    sweep(Path(tempfile.gettempdir()))
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)))
        with suppress(OSError):
            # On a file system without locks, nobody removes the folder if this process is killed.
            stack.callback(os.close, _locked(path))
        yield path


def sweep(temporary: Path) -> None:
    """Remove the folders of processes that were killed, on which nobody holds the lock, as far as that is possible."""
    with os.scandir(temporary) as entries:
        found = [Path(entry) for entry in entries if entry.name.startswith(PREFIXES)]
    for left in found:
        with suppress(OSError), ExitStack() as stack:
            if time.time() - left.stat(follow_symlinks=False).st_mtime > LEFT_S:
                stack.callback(os.close, _locked(left))
                shutil.rmtree(left, ignore_errors=True)


def _locked(path: Path) -> int:
    """Return the open folder, in use while it is open. Raises OSError if another process uses it, or without locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
