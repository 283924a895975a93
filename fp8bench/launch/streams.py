"""Text streams on which a write never fails: their reader may have stopped (`2>&1 | head -1`), or be a terminal that
was closed, or a file on a full disk, and none of that is a reason to end a measurement.
"""

import io
from typing import Any, TextIO


class _NeverFailing(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Write the data, and drop what cannot be written."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def never_failing(descriptor: int, encoding: str = "utf-8") -> TextIO:
    """Return a stream that writes to the descriptor line by line, and leaves it open."""
    raw = _NeverFailing(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)
