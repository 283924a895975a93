"""The ranks of a run on this machine, from their start to their end.

They share a folder, in which their rendezvous is a file: looking for a free port and binding it later is a race.
However the run ends, the folder is removed and no process that they started outlives it; if this process or the server
is killed, the kernel ends the ranks (see `lifeline`). When one fails, the others wait for it in a collective, and when
a phase takes too long, all may be waiting: their stacks are requested, then they are ended, and what each had found is
kept.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal, TypeVar

from fp8bench import registry
from fp8bench.launch.processes.blame import Overdue, PhaseClock, RankView, reports_of
from fp8bench.launch.processes.rank import REQUEST, TASK, End, Inbox, RankError, Task, rank_path
from fp8bench.launch.processes.server import POLL_S, Server, Wanted
from fp8bench.launch.signals import STOPPED, Interrupt, held_back, process, process_tree, send, waited_for
from fp8bench.machine import temporary
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import RunFailed, Status
from fp8bench.schema.files import Frozen, text_if_any
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress, read_progress

ToldT = TypeVar("ToldT", bound=Frozen)

ENTRY = "fp8bench.launch.processes.rank:measure"
IMPORTED_AS = {"torchao": "torchao.float8", "transformer_engine": "transformer_engine.pytorch"}
"""What modes import, by the package that they need."""

GRACE_S = 3.0  # for the siblings of a rank that failed: most fail too, and write where they were
PARTING_S = 30.0  # for the siblings of a rank that refused: they refuse too, and end their loaders in order
FINISH_S = 2.0  # after a signal, for ranks that have timed their steps as others have, and are about to say so
ANSWER_S = 5.0  # for a stack; a process that hangs inside a driver gives none

UNPROFILED = "not profiled: a signal ended the process after its last timed step"  # a mark

Watch = Callable[[Progress], None]
"""Called a few times a second with the progress of rank 0."""

Others = Callable[[Sequence[Progress | None], float | None], float | None]
"""Called at each look with the progress of each rank, and with the seconds they may go on since a rank did not end well
(None if all did). Returns that number, or the one that ranks elsewhere leave them.
"""


@dataclass(frozen=True)
class Outcome:
    """What the launcher saw of its ranks, by rank, and which of them were late."""

    views: tuple[RankView, ...]
    overdue: Overdue | None = None


class Executor(AbstractContextManager["Executor"]):
    """Runs one task after the other in processes of its own, which one server starts; that ends with the context."""

    @cached_property
    def server(self) -> Server:
        return Server()

    def require_ready(self) -> None:
        """Raise what keeps anything more from running."""

    def run(self, task: Task, watch: Watch = lambda _progress: None) -> list[RankReport]:
        """Return a report of each rank, by rank. Raises Interrupt, with the reports if all had timed their steps."""
        reports: list[RankReport] = []
        try:
            with held_back() as interrupted:
                if (done := run_ranks(task, watch, interrupted, server=self.server)) is not None:
                    reports = reports_of(task.config, done.views, done.overdue)
        except Interrupt as interrupt:
            interrupt.reports = reports
            raise
        return reports

    def close(self) -> None:
        self.server.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def run_ranks(
    task: Task,
    watch: Watch,
    interrupted: Callable[[], bool],
    others: Others = lambda _seen, grace_s: grace_s,
    *,
    server: Server,
) -> Outcome | None:
    """Run the task's ranks of this machine from start to end; return None if an interrupt ended them before they had
    timed their steps. No rank is left when it returns or raises. others: what other nodes leave these ranks. Raises
    RunFailed if there is no room for what they need to begin.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary.folder(temporary.RANKS))
            (folder / TASK).write_text(task.model_dump_json())
            for rank in task.ranks_here:
                # Room for what the rank will write here, its progress above all: without it, nothing runs.
                rank_path(folder, rank, "stack").write_text("\n")
        except OSError as error:
            what = f"cannot write to the folder for temporary files: {error.strerror}"
            raise RunFailed(what, "Make room there, or name another folder with TMPDIR") from error
        server.ready()
        stack.enter_context(process_tree(lambda: server.pid))
        ranks, modules = Ranks(server, folder), modules_of(task.config)
        stack.callback(ranks.close)
        for rank in task.ranks_here:
            ranks.begin(rank, modules)
        clock = PhaseClock(task.config, task.timeout_s, task.ranks_here, time.monotonic())
        overdue = _wait(ranks, clock, watch, interrupted, others)
        return _measured(ranks, task.config.nodes) if interrupted() else Outcome(_views(ranks), overdue)


class Ranks:
    """Ranks' processes by rank (the server's for one that is not started yet), and how those that ended ended."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.processes: dict[int, int] = {}
        self.ends: dict[int, End] = {}
        self.folder = folder
        self._server = server
        self.inboxes: dict[int, Inbox] = {}
        self._seen_s = time.monotonic()

    def begin(self, rank: int, modules: tuple[str, ...]) -> None:
        """Have the rank started, without waiting for it."""
        ours, its = os.pipe()
        self.inboxes[rank] = Inbox(ours)
        self.processes[rank] = self._server.pid or 0
        try:
            self._server.want(Wanted(folder=self.folder, rank=rank, entry=ENTRY, modules=modules), its)
        finally:
            os.close(its)

    def close(self) -> None:
        """Listen to nobody any more, and end a server that still has ranks to start."""
        for inbox in self.inboxes.values():
            inbox.close()
        if self._server.pid in self.processes.values():
            self._server.close()

    def looks(self, interrupted: Callable[[], bool]) -> Iterator[float]:
        """Look at the ranks and yield the monotonic time, until all ranks have ended or an interrupt came."""
        while len(self.ends) < len(self.processes) and not interrupted():
            self.look()
            yield time.monotonic()
            # A moment, or until a rank says something, because the rank may wait until it is read.
            wait([inbox.descriptor for inbox in self.inboxes.values() if inbox.descriptor is not None], POLL_S)

    def look(self) -> None:
        """Note which ranks have ended since the last look, and read what they say."""
        before, self._seen_s = self._seen_s, time.monotonic()
        alive = self._server.alive
        for answer in self._server.answers():
            if answer.end is None:
                self.processes[answer.rank] = answer.pid
            elif self.processes.get(answer.rank) == answer.pid:
                # Otherwise it is of an earlier run, which ended it.
                self.ends[answer.rank] = answer.end
        if not alive:
            remedy = (
                "The process that ranks are forked from was ended: see by whom, or whether memory ran out (`dmesg`)"
            )
            for rank in self.processes.keys() - self.ends.keys():
                self.ends[rank] = End(exit_code=-signal.SIGKILL, alive_s=before, remedy=remedy)
        for inbox in self.inboxes.values():
            # Read after the ends: what a rank said before it ended is in the pipe.
            inbox.read()

    def progress(self) -> list[Progress | None]:
        return [read_progress(rank_path(self.folder, rank, "progress")) for rank in self.processes]

    def told(self, rank: int, what: Literal["report", "kept", "error"], kind: type[ToldT]) -> ToldT | None:
        """Return the rank's message of this kind, e.g. what it had found so far; None if it told none."""
        text = self.inboxes[rank].said.get(what)
        return None if text is None else kind.model_validate_json(text)

    def stack_written(self, rank: int) -> str:
        """Return all that faulthandler has written for a rank: answers, and the stack at a crash."""
        return text_if_any(rank_path(self.folder, rank, "stack"))

    def stacks(self) -> tuple[dict[int, str], frozenset[int]]:
        """Return living ranks' stacks, and which are stopped. These are continued to answer: end all right after."""
        pids = {rank: pid for rank, pid in self.processes.items() if rank not in self.ends}
        found = {rank: process(pid) for rank, pid in pids.items()}
        stopped = frozenset(rank for rank, one in found.items() if one is not None and one.state in (STOPPED, "t"))
        before = {rank: self.stack_written(rank) for rank in pids}
        for pid in pids.values():
            send(pid, REQUEST)
            send(pid, signal.SIGCONT)
        answers: dict[int, str] = {}

        def answered() -> bool:
            nonlocal answers
            earlier, answers = answers, {rank: self.stack_written(rank).removeprefix(before[rank]) for rank in pids}
            return all(answers.values()) and answers == earlier

        waited_for(answered, ANSWER_S, POLL_S)
        return answers, stopped


def modules_of(config: RunConfig) -> tuple[str, ...]:
    """Return what the ranks of a run will import, as far as it is of libraries that this package knows."""
    mode, workload = registry.modes().get(config.mode), registry.find_workload(config.workload)
    needs = (workload.needs, mode.needs if mode is not None else None)
    found = [IMPORTED_AS.get(one.module, one.module) for one in needs if one is not None and one.module is not None]
    return ("torch", *found, "fp8bench.worker.main")


def _wait(
    ranks: Ranks, clock: PhaseClock, watch: Watch, interrupted: Callable[[], bool], others: Others
) -> Overdue | None:
    """Wait until all ranks ended, one failed and the others had their grace, or a signal or a deadline came."""
    statuses: dict[int, Status | None] = {}
    failed_s: float | None = None
    for now in ranks.looks(interrupted):
        for rank in ranks.ends.keys() - statuses.keys():
            report = ranks.told(rank, "report", RankReport)
            statuses[rank] = report.status if report else None
        ended, seen = set(statuses.values()), ranks.progress()
        # How long the ranks may go on after one did not end well.
        grace_s = others(seen, GRACE_S if ended & {None, "failed"} else PARTING_S if ended - {"ok"} else None)
        failed_s = failed_s or (None if grace_s is None else now)
        if failed_s and grace_s is not None and now - failed_s >= grace_s:
            return None
        if 0 in ranks.processes and seen[0] is not None:
            watch(seen[0])
        overdue = clock.look(now, seen)
        if overdue is not None and failed_s is None:
            others(seen, 0.0)
            return overdue
    return None


def _measured(ranks: Ranks, nodes: int) -> Outcome | None:
    """Return what the ranks have reported, or have kept if that is enough, within FINISH_S; None if one has neither."""
    deadline = time.monotonic() + FINISH_S
    while True:
        ranks.look()
        views = []
        for rank in ranks.processes:
            report = ranks.told(rank, "report", RankReport)
            # Ranks of several nodes fail when a signal ends those of another one.
            failed = nodes == 1 and ranks.told(rank, "error", RankError) is not None
            if report is None and "enough" in ranks.inboxes[rank].said and not failed:
                report = ranks.told(rank, "kept", RankReport)
                if report is not None and rank == 0:
                    # Of this rank alone there is a profile.
                    report = report.model_copy(update={"marks": (*report.marks, UNPROFILED)})
            if report is not None:
                views.append(RankView(rank=rank, report=report, stage="done"))
        if len(views) == len(ranks.processes):
            return Outcome(tuple(views))
        if not views or time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)


def _views(ranks: Ranks) -> tuple[RankView, ...]:
    """Return each rank's view, once: if one left no report, those that live write their stacks, and must be ended."""
    ranks.look()
    reports = {rank: ranks.told(rank, "report", RankReport) for rank in ranks.processes}
    if None not in reports.values():
        return tuple(RankView(rank=rank, report=report, stage="done") for rank, report in reports.items())
    progress, (stacks, stopped) = ranks.progress(), ranks.stacks()
    now, epoch_s, views = time.monotonic(), time.time() - time.monotonic(), []
    for (rank, report), came in zip(reports.items(), progress, strict=True):
        end, error = ranks.ends.get(rank), ranks.told(rank, "error", RankError)
        view = RankView(
            rank=rank,
            report=report,
            kept=ranks.told(rank, "kept", RankReport),
            measured="enough" in ranks.inboxes[rank].said,
            error=error and error.model_copy(update={"at_s": error.at_s + epoch_s}),
            end=end and end.model_copy(update={"alive_s": end.alive_s + epoch_s}),
            stage=came.stage if came else None,
            step=came.step if came else 0,
            stack=stacks.get(rank),
            stopped=rank in stopped,
        )
        how = f"ended by itself, exit code {end.exit_code}" if end else f"alive; {view.doing}"
        where = "had not begun"
        if came is not None:
            where = f"in the phase {came.stage!r}, step {came.step}, last moved {now - came.at_s:.0f} s ago"
        log = (f"rank {rank}: {how}; {where}", error.traceback if error else "", ranks.stack_written(rank))
        views.append(view.model_copy(update={"log": "\n".join(part.rstrip() for part in log if part.strip())}))
    return tuple(views)
