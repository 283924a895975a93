"""Ties a process to its parent with Linux's prctl(2): a process ends when its parent is gone, and a launcher adopts its
descendants' orphans, to end them. Nothing heavy is imported: a rank calls this before anything else, so that an orphan
does no useless work.
"""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 1, 36, 37

GONE = 1  # the exit code of a process that found its parent gone


def leave_with(parent: int) -> None:
    """Have the kernel kill this process, but none that it forks, when its parent ends; exit at once if it has ended."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    # The check follows the call, because the parent may end between the two.
    if os.getppid() != parent:
        os._exit(GONE)


def signal_with_parent(number: int) -> None:
    """Have the kernel send this signal to this process when its parent ends, so that it can end in order."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt this process's descendants when their parents end, while the context lasts."""
    libc = ctypes.CDLL(None)
    held = ctypes.c_int()
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(held), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_CHILD_SUBREAPER, held.value, 0, 0, 0)
