"""What a rank tells its launcher: what it has found so far, its report, or the error that ended it.

The messages go through a pipe, which needs no room on any disk: a measurement is not lost if the folder for temporary
files is full, or a limit of file sizes is reached. The launcher reads each time it looks at its ranks, and a rank that
has more to tell than the pipe holds waits for that. Nobody waits for the pipe's end, which a child of the rank may hold
open.

A message is a line that says what it is and how many bytes follow. A message that is cut off, because its rank was
killed, does not count.
"""

import fcntl
import os
from contextlib import suppress
from typing import Literal, get_args

What = Literal["kept", "enough", "report", "error"]
"""kept: a report of what was found so far, which counts if no other report comes. enough: that what was kept is a
measurement, if a signal ends the run now. error: see `rank.RankError`.
"""

PIPE_BYTES = 1 << 20
"""The pipe's size, if the kernel grants it: large enough to take a report of the usual size at once."""

_PART = 1 << 16


class Teller:
    """The rank's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._failed = False

    def say(self, what: What, text: str) -> None:
        """Send a message. Of each `what` the last counts, but the first of the errors: later ones follow from it."""
        if what == "error" and self._failed:
            return
        self._failed = self._failed or what == "error"
        data = text.encode()
        rest = memoryview(f"{what} {len(data)}\n".encode() + data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class Inbox:
    """The launcher's end of the pipe. said: the complete messages, by what they are."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.said: dict[What, str] = {}
        self.descriptor: int | None = descriptor
        self._unread = bytearray()

    def read(self) -> None:
        """Read all that has come."""
        while self.descriptor is not None:
            try:
                part = os.read(self.descriptor, _PART)
            except BlockingIOError:
                break
            if not part:
                self.close()
            self._unread += part
        while self._take():
            pass

    def close(self) -> None:
        """Stop reading."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _take(self) -> bool:
        """Take the next message if it is complete, and return whether it was."""
        head, end, _ = self._unread.partition(b"\n")
        if not end:
            return False
        name, length = head.decode().split()
        begin = len(head) + 1
        if len(self._unread) < begin + int(length):
            return False
        text = self._unread[begin : begin + int(length)].decode()
        del self._unread[: begin + int(length)]
        self.said.update({what: text for what in get_args(What) if what == name})
        return True
