"""Under torchrun: join the group that it made, instead of making one. Rank 0 gathers the reports and keeps the record.

A refusal reaches every rank (worker.group.agreement), so its record is kept too. A crash ends this process with an
error line and exit code 5, and so does a phase that takes too long; torchrun then ends the other ranks by SIGTERM, and
there is no record.

No launcher of ours sees such a rank hang, so it watches itself, from a thread of its own.
"""

import faulthandler
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from fp8bench.launch.plan import Elastic
from fp8bench.launch.processes import Watch
from fp8bench.launch.processes.blame import Deadlines, Overdue, PhaseClock
from fp8bench.launch.processes.rank import in_a_line
from fp8bench.launch.signals import SIGNALS, ProcessTree
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, RunFailed
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank_report import RankReport
from fp8bench.worker.progress import read_progress

POLL_S = 0.5
LEAVE_S = 3.0
"""How long the main thread may take to end in order after a signal."""

LOCKED_S = 20.0
"""How much later than the deadline faulthandler ends a process whose interpreter's lock is held."""


class ElasticExecutor:
    """Runs this process's rank."""

    def __init__(self, place: Elastic, machine: MachineIdentity | None = None, timeout_s: float | None = None) -> None:
        """machine: this node's. timeout_s: of each phase; None: by the phase."""
        self.place = place
        self.machine = machine
        self.timeout_s = timeout_s

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport] | None:
        """The reports of all ranks on rank 0, None on the others; nobody watches, since this process is the one at
        work. marks: what this rank found of its GPU. Raises RunFailed when this rank fails.
        """
        import torch.distributed as dist

        from fp8bench.worker.main import Aside, measure, rank_group

        rank = self.place.rank
        with tempfile.TemporaryDirectory(prefix="fp8bench-", ignore_cleanup_errors=True) as name:
            progress = Path(name) / "progress"
            with (
                _Watchdog(rank, progress, Deadlines(config, self.timeout_s)).watching(),
                _said_in_a_line(rank),
                rank_group(config, rank, self.place.local_rank, init_method="env://") as device,
            ):
                report = measure(config, rank, device, Aside(progress=progress, trace=trace))
                mine = report.model_copy(update={"machine": self.machine, "marks": tuple(marks)})
                gathered = [mine] * self.place.world_size if rank == 0 else None
                dist.gather_object(mine, gathered, dst=0)
        return gathered


@contextmanager
def _said_in_a_line(rank: int) -> Iterator[None]:
    """An error that is not ours becomes one that is; its traceback goes to standard error."""
    try:
        yield
    except (Fp8benchError, KeyboardInterrupt):
        raise
    except BaseException as error:
        traceback.print_exception(error)
        raise RunFailed(
            f"rank {rank} died: {in_a_line(error)} (crash)", "Its traceback is above; torchrun ends the other ranks"
        ) from error


class _Watchdog:
    """Watches over this process.

    A phase that takes longer than its deadline ends the process with exit code 5, its stack and one line. A signal that
    asks the program to end does so within seconds also while the main thread is inside a native call that never
    returns, where Python's own handler waits for ever. Should the thread itself not run, since a native call holds the
    interpreter's lock, faulthandler ends the process from a thread in C, some seconds later.
    """

    def __init__(self, rank: int, progress: Path, deadlines: Deadlines) -> None:
        """progress: the file in which the rank writes how far it has come; its folder is removed when the process is
        ended.
        """
        self._rank = rank
        self._progress = progress
        self._deadlines = deadlines
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the context stands. Enter and leave it in the main thread."""
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        wakeup_before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(woken,), name="fp8bench-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            signal.set_wakeup_fd(wakeup_before)
            waker.send(b"\0")
            thread.join()
            faulthandler.cancel_dump_traceback_later()
            woken.close()
            waker.close()

    def _watch(self, woken: socket.socket) -> None:
        clock = PhaseClock(self._deadlines, 1, time.monotonic())
        while not self._over.is_set():
            progress = read_progress(self._progress)
            overdue = clock.look(time.monotonic(), [progress])
            if overdue is not None:
                self._end_late(overdue)
            faulthandler.dump_traceback_later(self._deadlines.limit_s(progress) + LOCKED_S, exit=True)
            number = _signalled(woken, POLL_S)
            if number and not self._over.wait(LEAVE_S):
                self._end(128 + number, f"ended by {signal.Signals(number).name} inside a call that did not return")

    def _end_late(self, overdue: Overdue) -> NoReturn:
        faulthandler.dump_traceback(sys.stderr)
        late = RunFailed(
            f"rank {self._rank} did not get past the phase {overdue.stage!r} within {overdue.limit_s:.0f} s (timeout)",
            "Its stack is above: a rank that waits in a collective waits for another. Raise --timeout if the phase "
            "needs longer",
        )
        self._end(late.exit_code, str(late))

    def _end(self, code: int, line: str) -> NoReturn:
        """End this process and all that it started, though the main thread may never return."""
        print(f"fp8bench: {line}", file=sys.stderr, flush=True)
        shutil.rmtree(self._progress.parent, ignore_errors=True)
        ProcessTree().end()
        os._exit(code)


def _signalled(woken: socket.socket, seconds: float) -> int | None:
    """The first signal that asks the program to end, if one came within so many seconds."""
    ready, _, _ = select.select([woken], [], [], seconds)
    numbers = woken.recv(64) if ready else b""
    return next((number for number in numbers if number in SIGNALS), None)
