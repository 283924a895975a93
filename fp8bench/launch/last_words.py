"""What a rank writes down when it fails, before it leaves its group, which makes the others fail too: when, why in one
line, and its whole traceback.
"""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fp8bench.schema.errors import Cause, Fp8benchError
from fp8bench.schema.files import Frozen

LOST_TOUCH = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL error",
    "DistBackendError",
)
"""Of errors that a rank gets for another's sake: the connection to it broke."""


class LastWords(Frozen):
    """at_s: by the monotonic clock, which is one for all processes of a machine. lost_touch: another rank was lost."""

    at_s: float
    what: str
    cause: Cause
    remedy: str | None = None
    lost_touch: bool = False
    traceback: str


def path(folder: Path, rank: int) -> Path:
    """Where a rank's last words are."""
    return folder / f"rank-{rank}-last-words.json"


def read(folder: Path, rank: int) -> LastWords | None:
    """None of a rank that said nothing."""
    try:
        return LastWords.model_validate_json(path(folder, rank).read_bytes())
    except (OSError, ValueError):
        return None


def last_words(error: BaseException) -> LastWords:
    """Of an error that ends a rank."""
    first = in_a_line(error)
    ours = error if isinstance(error, Fp8benchError) else None
    return LastWords(
        at_s=time.monotonic(),
        what=ours.what if ours else first,
        cause=(ours.cause if ours else None) or "crash",
        remedy=ours.remedy if ours else None,
        lost_touch=ours is None and any(words in f"{first} {error}" for words in LOST_TOUCH),
        traceback="".join(traceback.format_exception(error)),
    )


def in_a_line(error: BaseException) -> str:
    """An error's type and the first line of its message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def write_whole(file: Path, text: str) -> None:
    """So that whoever reads it finds all of it or nothing."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(text)
    os.replace(unfinished, file)


class Confession:
    """Around what a rank does: the first error that leaves it is written down, and `leave` is called."""

    def __init__(self, folder: Path, rank: int, leave: Callable[[], None]) -> None:
        self._path = path(folder, rank)
        self._leave = leave

    def __enter__(self) -> None: ...

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is not None and not self._path.exists():
            write_whole(self._path, last_words(error).model_dump_json())
        if error is not None:
            self._leave()
