"""A rank under torchrun has no launcher of ours that sees it hang, so it watches itself, from a thread of its own.

A phase that takes longer than its deadline ends the process with exit code 5, its stack and one line. A signal that
asks the program to end does so within seconds also while the main thread is inside a native call that never returns,
where Python's own handler waits for ever. Should the thread itself not run, since a native call holds the interpreter's
lock, faulthandler ends the process from a thread in C, some seconds later.
"""

import faulthandler
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from fp8bench.launch.deadlines import Deadlines, Overdue, PhaseClock
from fp8bench.launch.interrupts import SIGNALS
from fp8bench.launch.process_tree import ProcessTree
from fp8bench.schema.errors import RunFailed
from fp8bench.worker.progress import read_progress

POLL_S = 0.5
LEAVE_S = 3.0
"""How long the main thread may take to end in order after a signal."""

LOCKED_S = 20.0
"""How much later than the deadline faulthandler ends a process whose interpreter's lock is held."""


class Watchdog:
    """Watches over this process, a rank, while the context stands. Enter and leave it in the main thread.

    progress: the file in which the rank tells how far it has come; its folder is removed when the process is ended.
    """

    def __init__(self, rank: int, progress: Path, deadlines: Deadlines) -> None:
        self._rank = rank
        self._progress = progress
        self._deadlines = deadlines
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fp8bench-watchdog", daemon=True)

    def __enter__(self) -> None:
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        signal.set_wakeup_fd(self._wakeup_before)
        self._waker.send(b"\0")
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        for end in (self._woken, self._waker):
            end.close()

    def _watch(self) -> None:
        clock = PhaseClock(self._deadlines, 1, time.monotonic())
        while not self._over.is_set():
            progress = read_progress(self._progress)
            overdue = clock.look(time.monotonic(), [progress])
            if overdue is not None:
                self._end_late(overdue)
            faulthandler.dump_traceback_later(self._deadlines.limit_s(progress) + LOCKED_S, exit=True)
            number = self._signalled(POLL_S)
            if number and not self._over.wait(LEAVE_S):
                self._end(128 + number, f"ended by {signal.Signals(number).name} inside a call that did not return")

    def _signalled(self, seconds: float) -> int | None:
        """The first signal that asks the program to end, if one came within so many seconds."""
        ready, _, _ = select.select([self._woken], [], [], seconds)
        numbers = self._woken.recv(64) if ready else b""
        return next((number for number in numbers if number in SIGNALS), None)

    def _end_late(self, overdue: Overdue) -> NoReturn:
        faulthandler.dump_traceback(sys.stderr)
        late = RunFailed(
            f"rank {self._rank} did not get past the phase {overdue.stage!r} within {overdue.limit_s:.0f} s (timeout)",
            "Its stack is above: a rank that waits in a collective waits for another. Raise --timeout if the phase "
            "needs longer",
        )
        self._end(late.exit_code, str(late))

    def _end(self, code: int, line: str) -> NoReturn:
        """End this process and all that it brought about, though the main thread may never return."""
        print(f"fp8bench: {line}", file=sys.stderr, flush=True)
        shutil.rmtree(self._progress.parent, ignore_errors=True)
        ProcessTree().end()
        os._exit(code)
