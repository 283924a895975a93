"""Under torchrun: join the group that it made, instead of making one. Rank 0 gathers the reports and keeps the record.

A refusal reaches every rank (worker.group.agreement), so its record is kept too. A crash ends this process with an
error line and exit code 5; torchrun then ends the other ranks by SIGTERM. Rank 0, or where its process is gone the
first one beside it that is left, keeps a record of the rank that failed (`_Failures`).

No launcher of ours sees such a rank hang, so it watches itself, from a thread of its own, and ends with exit code 5
when a phase takes too long. Which rank held up the others is then unknown, and there is no record.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from fp8bench.launch.plan import Elastic
from fp8bench.launch.processes import Watch
from fp8bench.launch.processes.blame import Deadlines, End, Overdue, PhaseClock, of_deaths, report_of_failed
from fp8bench.launch.processes.rank import RankError, in_a_line, rank_error
from fp8bench.launch.signals import SIGNALS, ZOMBIE, ProcessTree, held_back, ignore_signals, process
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, RunFailed
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank_report import RankReport
from fp8bench.worker.progress import Stage, read_progress

POLL_S = 0.5
LEAVE_S = 3.0
"""How long the main thread may take to end in order after a signal."""

LOCKED_S = 20.0
"""How much later than the deadline faulthandler ends a process whose interpreter's lock is held."""

SETTLE_S = 2.0
"""How long after a connection broke the end of the rank behind it is known."""

STORE_S = 5.0
"""How long the store may take to answer."""

LOOK_S = 0.05


class ElasticExecutor:
    """Runs this process's rank."""

    def __init__(self, place: Elastic, machine: MachineIdentity | None = None, timeout_s: float | None = None) -> None:
        """machine: this node's. timeout_s: of each phase; None: by the phase."""
        self.place = place
        self.machine = machine
        self.timeout_s = timeout_s
        self.keep_failed: Callable[[list[RankReport]], object] | None = None
        """Keeps the record of a run that failed, where `run` cannot return its reports."""

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport] | None:
        """The reports of all ranks on the rank that keeps the record, None on the others; nobody watches, since this
        process is the one at work. marks: what this rank found of its GPU. Raises RunFailed when this rank fails and
        does not keep the record.
        """
        import torch.distributed as dist

        from fp8bench.worker.main import Aside, measure, rank_group

        rank = self.place.rank
        with tempfile.TemporaryDirectory(prefix="fp8bench-", ignore_cleanup_errors=True) as name:
            progress = Path(name) / "progress"
            failures = _Failures(self.place, progress)
            watchdog = _Watchdog(progress, Deadlines(config, self.timeout_s), failures, self.keep_failed)
            try:
                with (
                    watchdog.watching(),
                    rank_group(config, rank, self.place.local_rank, init_method="env://") as device,
                    failures.shared(),
                ):
                    report = measure(config, rank, device, Aside(progress=progress, trace=trace))
                    mine = report.model_copy(update={"machine": self.machine, "marks": tuple(marks)})
                    gathered = [mine] * self.place.world_size if rank == 0 else None
                    dist.gather_object(mine, gathered, dst=0)
            except BaseException as error:
                # The program ends now, also without the signal that torchrun is about to send.
                ignore_signals()
                ours = isinstance(error, (Fp8benchError, KeyboardInterrupt))
                if (reports := failures.found or failures.look()) is not None:
                    return reports
                if ours:
                    raise
                traceback.print_exception(error)
                raise RunFailed(
                    f"rank {rank} died: {in_a_line(error)} (crash)",
                    "Its traceback is above; torchrun ends the other ranks",
                ) from error
        return gathered


class _Member(Frozen):
    """A rank's process. progress: the file in which it writes how far it has come."""

    pid: int
    began: int
    progress: Path


class _Failure(Frozen):
    """The error that ended a rank, and in which phase. The error's `at_s` is its place in the order of failures, since
    every machine has a clock of its own.
    """

    error: RankError
    stage: Stage


class _Failures:
    """What ranks write of their ends into the store by which torchrun's processes find each other. torchrun itself
    holds it, so it outlives every rank; where another launcher set torchrun's variables, rank 0 holds it.

    found: one report a rank of a run that failed, where this rank is to keep its record.
    """

    def __init__(self, place: Elastic, progress: Path) -> None:
        self.place = place
        self.found: list[RankReport] | None = None
        self._progress = progress
        self._store: Any = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Enter it inside the group: to leave that is what makes the others fail, so an error is written before."""
        from torch.distributed import TCPStore

        address, port, limit = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=STORE_S)
        with suppress(RuntimeError):
            # A connection of its own: the main thread may wait in the group's for ever.
            self._store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
        if (mine := process(os.getpid())) is not None:
            member = _Member(pid=mine.pid, began=mine.began, progress=self._progress)
            self._write("member", member.model_dump_json())
        try:
            yield
        except KeyboardInterrupt:
            # A second signal is to interrupt none of it.
            with held_back():
                self.leave()
            raise
        except BaseException as error:
            dated = rank_error(error).model_copy(update={"at_s": self._order()})
            self._write("failure", _Failure(error=dated, stage=_stage(self._progress)).model_dump_json())
            self.found = self.look(SETTLE_S)
            raise
        self.leave()

    def leave(self) -> None:
        """This rank ends, and no other fails because of it."""
        self._write("left", "yes")

    def look(self, patience_s: float = 0.0) -> list[RankReport] | None:
        """One report a rank of a run that failed; None where another rank keeps its record, or no rank has failed.

        patience_s: how long to wait until it is known why, where this rank has only lost the connection to another.
        """
        deadline = time.monotonic() + patience_s
        while True:
            failures, silent = self._failures(), self._silent()
            known = silent or any(not one.error.connection_lost for one in failures.values())
            if known or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_S)
        why = of_deaths(silent.values(), {rank: one.error for rank, one in failures.items()})
        first_here = self.place.rank == self.place.local_rank and silent.keys() >= set(range(self.place.rank))
        if why is None or not first_here or (self._all("left") and not known):
            return None
        first = why.ranks[0]
        stage = failures[first].stage if first in failures else _stage(self._members()[first].progress)
        why = replace(why, reason=f"{why.reason}, in the phase {stage!r}")
        logs = {
            rank: f"rank {rank}, in the phase {one.stage!r}:\n{one.error.traceback}" for rank, one in failures.items()
        }
        return [report_of_failed(rank, why, {}, logs.get(rank, "")) for rank in range(self.place.world_size)]

    def _failures(self) -> dict[int, _Failure]:
        return {rank: _Failure.model_validate_json(text) for rank, text in self._all("failure").items()}

    def _members(self) -> dict[int, _Member]:
        return {rank: _Member.model_validate_json(text) for rank, text in self._all("member").items()}

    def _silent(self) -> dict[int, End]:
        """Ranks of this machine whose processes are gone, and which wrote nothing of their end."""
        first = self.place.rank - self.place.local_rank
        here = range(first, first + self.place.local_world_size)
        # In this order: a rank that writes between the two is not silent.
        gone = [rank for rank, member in self._members().items() if rank in here and _is_gone(member)]
        ended = self._all("failure").keys() | self._all("left").keys()
        return {rank: End(rank, None, 0.0) for rank in gone if rank not in ended}

    def _all(self, what: str) -> dict[int, str]:
        """By rank, of those that wrote it; empty where the store is gone."""
        found: dict[int, str] = {}
        with suppress(RuntimeError):
            for rank in range(self.place.world_size if self._store else 0):
                if self._store.check([_key(what, rank)]):
                    found[rank] = self._store.get(_key(what, rank)).decode()
        return found

    def _write(self, what: str, text: str) -> None:
        with suppress(RuntimeError):
            if self._store is not None:
                self._store.set(_key(what, self.place.rank), text)

    def _order(self) -> float:
        with suppress(RuntimeError):
            if self._store is not None:
                return float(self._store.add(_key("order"), 1))
        return 0.0


def _key(what: str, rank: int | str = "all") -> str:
    """Of this try: torchrun may start the ranks again beside the same store."""
    return f"fp8bench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{what}/{rank}"


def _is_gone(member: _Member) -> bool:
    now = process(member.pid)
    return now is None or now.began != member.began or now.state == ZOMBIE


def _stage(path: Path) -> Stage:
    progress = read_progress(path)
    return progress.stage if progress else "starting"


class _Watchdog:
    """Watches over this process.

    A phase that takes longer than its deadline ends the process with exit code 5, its stack and one line. A signal that
    asks the program to end does so within seconds also while the main thread is inside a native call that never
    returns, where Python's own handler waits for ever. Should the thread itself not run, since a native call holds the
    interpreter's lock, faulthandler ends the process from a thread in C, some seconds later.
    """

    def __init__(
        self,
        progress: Path,
        deadlines: Deadlines,
        failures: _Failures,
        keep_failed: Callable[[list[RankReport]], object] | None,
    ) -> None:
        """progress: the file in which the rank writes how far it has come; its folder is removed when the process is
        ended.
        """
        self._progress = progress
        self._deadlines = deadlines
        self._failures = failures
        self._keep_failed = keep_failed
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
                reports = self._failures.found or self._failures.look()
                if reports is not None and self._keep_failed is not None:
                    self._keep_failed(reports)
                    self._end(RunFailed.exit_code)
                self._end(128 + number, f"ended by {signal.Signals(number).name} inside a call that did not return")

    def _end_late(self, overdue: Overdue) -> NoReturn:
        faulthandler.dump_traceback(sys.stderr)
        late = RunFailed(
            f"rank {self._failures.place.rank} did not get past the phase {overdue.stage!r} within "
            f"{overdue.limit_s:.0f} s (timeout)",
            "Its stack is above: a rank that waits in a collective waits for another. Raise --timeout if the phase "
            "needs longer",
        )
        self._end(late.exit_code, str(late))

    def _end(self, code: int, line: str | None = None) -> NoReturn:
        """End this process and all that it started, though the main thread may never return."""
        self._failures.leave()
        if line is not None:
            print(f"fp8bench: {line}", file=sys.stderr, flush=True)
        shutil.rmtree(self._progress.parent, ignore_errors=True)
        ProcessTree().end()
        os._exit(code)


def _signalled(woken: socket.socket, seconds: float) -> int | None:
    """The first signal that asks the program to end, if one came within so many seconds."""
    ready, _, _ = select.select([woken], [], [], seconds)
    numbers = woken.recv(64) if ready else b""
    return next((number for number in numbers if number in SIGNALS), None)
