"""Streams of text on which a write never fails: who reads them may have stopped (`2>&1 | head -1`), or be a terminal
that was closed, or a file on a full disk; and none of it is a reason to end a measurement.
"""

import io
from typing import Any, TextIO


class _NeverFailing(io.FileIO):
    def write(self, data: Any, /) -> int:
        """What cannot be written is dropped."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def never_failing(descriptor: int, encoding: str = "utf-8") -> TextIO:
    """A stream that writes there, line by line, and leaves the descriptor open."""
    raw = _NeverFailing(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)
