"""What ties a process to its parent, by Linux's prctl(2): it ends when its parent is gone, and a launcher adopts the
orphans of its descendants, so that it can end them.

Nothing heavy is imported here: a rank calls it before anything else, so that one that is orphaned while it still
imports torch does no useless work.
"""

import ctypes
import os
import signal

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37

GONE = 1
"""Exit code of a process that found its parent gone."""


def leave_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; leave at once where it has ended already.

    parent: its process id. The tie is this process's alone: those that it forks need their own.
    """
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    # In this order: the parent may end between the two.
    if os.getppid() != parent:
        os._exit(GONE)


def signal_with_parent(number: int) -> None:
    """Have the kernel send this signal to this process when its parent ends, so that it can end in order."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)


def adopt_orphans(wanted: bool) -> bool:
    """Whether descendants of this process whose parents end become its children. Returns what held before."""
    libc = ctypes.CDLL(None)
    held = ctypes.c_int()
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(held), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
    return bool(held.value)
