"""Under torchrun: join the group that it made, instead of making one. Rank 0 gathers the reports and keeps the record.

A refusal reaches every rank (worker.parallel.agreement), so its record is kept too. A crash ends this process with an
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
from fp8bench.launch.signals import SIGNALS, ZOMBIE, Process, ProcessTree, held_back, ignore_signals, process
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, RunFailed
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank import RankReport
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


class _State(Frozen):
    """A rank, for the others. progress: the file in which it writes how far it has come. stage: in which phase the
    error ended it. left: it ends, and no other fails because of that.
    """

    process: Process | None
    progress: Path
    stage: Stage | None = None
    error: RankError | None = None
    left: bool = False

    def is_gone(self) -> bool:
        """Whether its process has ended, on this machine."""
        if self.process is None:
            return False
        now = process(self.process.pid)
        return now is None or now.identity != self.process.identity or now.state == ZOMBIE


class _Failures:
    """What ranks write of themselves into the store by which torchrun's processes find each other. torchrun itself
    holds it, so it outlives every rank; where another launcher set torchrun's variables, rank 0 holds it.

    found: one report a rank of a run that failed, where this rank is to keep its record.
    """

    def __init__(self, place: Elastic, progress: Path) -> None:
        self.place = place
        self.found: list[RankReport] | None = None
        self._mine = _State(process=process(os.getpid()), progress=progress)
        self._store: Any = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Enter it inside the group: to leave that is what makes the others fail, so an error is written before."""
        from torch.distributed import TCPStore

        address, port, limit = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=STORE_S)
        with suppress(RuntimeError):
            # A connection of its own: the main thread may wait in the group's for ever.
            self._store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
        self._write()
        try:
            yield
        except KeyboardInterrupt:
            # A second signal is to interrupt none of it.
            with held_back():
                self.leave()
            raise
        except BaseException as error:
            # By the time of day, since every machine has a monotonic clock of its own.
            dated = rank_error(error).model_copy(update={"at_s": time.time()})
            self._write(error=dated, stage=_stage(self._mine.progress))
            self.found = self.look(SETTLE_S)
            raise
        self.leave()

    def leave(self) -> None:
        """This rank ends, and no other fails because of that."""
        self._write(left=True)

    def look(self, patience_s: float = 0.0) -> list[RankReport] | None:
        """One report a rank of a run that failed; None where another rank keeps its record, or no rank has failed.

        patience_s: how long to wait until it is known why, where this rank has only lost the connection to another.
        """
        deadline = time.monotonic() + patience_s
        while True:
            # In this order: a rank that writes between the two has not gone in silence.
            gone = {rank for rank, state in self._states().items() if self._is_here(rank) and state.is_gone()}
            states = self._states()
            errors = {rank: state.error for rank, state in states.items() if state.error}
            silent = [
                End(rank, None, 0.0)
                for rank, state in states.items()
                if rank in gone and not (state.error or state.left)
            ]
            known = silent or any(not error.connection_lost for error in errors.values())
            if known or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_S)
        why = of_deaths(silent, errors)
        keeps = self._is_here(0) and {end.rank for end in silent} >= set(range(self.place.rank))
        if why is None or not keeps or (not known and any(state.left for state in states.values())):
            return None
        first = states[why.ranks[0]]
        why = replace(why, reason=f"{why.reason}, in the phase {first.stage or _stage(first.progress)!r}")
        logs = {rank: f"rank {rank}: in the phase {states[rank].stage!r}\n{e.traceback}" for rank, e in errors.items()}
        return [report_of_failed(rank, why, {}, logs.get(rank, "")) for rank in range(self.place.world_size)]

    def _is_here(self, rank: int) -> bool:
        first = self.place.rank - self.place.local_rank
        return first <= rank < first + self.place.local_world_size

    def _states(self) -> dict[int, _State]:
        """By rank, of those that joined; empty where the store is gone."""
        with suppress(RuntimeError):
            joined = [r for r in range(self.place.world_size) if self._store and self._store.check([_key(r)])]
            return {rank: _State.model_validate_json(self._store.get(_key(rank))) for rank in joined}
        return {}

    def _write(self, **changes: Any) -> None:
        self._mine = self._mine.model_copy(update=changes)
        with suppress(RuntimeError):
            if self._store:
                self._store.set(_key(self.place.rank), self._mine.model_dump_json())


def _key(rank: int) -> str:
    """Of this try: torchrun may start the ranks again beside the same store."""
    return f"fp8bench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"


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
                    try:
                        self._keep_failed(reports)
                    except (Fp8benchError, OSError) as error:
                        self._end(RunFailed.exit_code, str(error))
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
