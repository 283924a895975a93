"""Fresh processes for each run, one a rank; and none of them left behind.

Each rank writes its report to a file of its own: files need no reader that keeps up, and outlive the process. When one
rank fails the others wait for it in a collective, and when a phase takes too long all of them may; so their stacks are
requested, and they are ended. Whatever ends the run (its end, a failure, a deadline, a signal to this process), its
folder is removed and no process that it started outlives it. When this process is killed the kernel ends the ranks (see
`lifeline`).

Ranks have a session of their own, so that Ctrl-C on the terminal reaches this process alone, which ends them in order.
The rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fp8bench.launch.processes import Watch
from fp8bench.launch.processes.blame import Deadlines, End, Overdue, PhaseClock
from fp8bench.launch.processes.rank import (
    MEASURES_A_RUN,
    RankError,
    Stacks,
    Task,
    Work,
    ask_for_stacks,
    rank_path,
    read_error,
    stack_written,
    task_path,
)
from fp8bench.launch.processes.views import RankView, reports_of
from fp8bench.launch.signals import held_back, process_tree
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Status
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress, read_progress

GRACE_S = 3.0
"""For the siblings of a rank that failed: most fail too, and write where they were."""

PARTING_S = 30.0
"""For the siblings of a rank that refused: they refuse too, and end their loaders in order."""

POLL_S = 0.1

_BOOT = """
import json, pathlib, sys
folder, rank, parent = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.path[:] = json.loads((folder / "path.json").read_text())
from fp8bench.lifeline import leave_with
leave_with(parent)
from fp8bench.launch.processes.rank import main
main(folder, rank)
"""
"""What a rank's interpreter runs: modules are found where the launcher finds them, and it is tied to that before
anything heavy is imported.
"""


Others = Callable[[Sequence[Progress | None], float | None], float | None]
"""Called a few times a second with how far each rank has come, and with how long they may go on since one of them ended
otherwise than well (None: none did). Returns that, or what ranks elsewhere leave them.
"""


def alone(_seen: Sequence[Progress | None], grace_s: float | None) -> float | None:
    """There are no others."""
    return grace_s


@dataclass(frozen=True)
class Outcome:
    """What the launcher saw of its ranks, by rank, and which of them were late."""

    views: tuple[RankView, ...]
    overdue: Overdue | None = None


class SpawnExecutor:
    """Runs each configuration in processes of its own."""

    def __init__(self, timeout_s: float | None = None, work: Work = MEASURES_A_RUN) -> None:
        """timeout_s: of each phase; None: by the phase. work: what each rank does."""
        self.timeout_s = timeout_s
        self.work = work

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport]:
        """Start the ranks, wait for them, and read what they wrote. Raises Interrupt once all are ended."""
        with held_back() as interrupted:
            task = Task(config=config, trace=trace, work=self.work)
            done = run_ranks(task, self.timeout_s, watch, interrupted)
            # Interrupted, there is nothing to report: the ranks were well.
            return [] if done is None else reports_of(done.views, done.overdue)


def run_ranks(
    task: Task, timeout_s: float | None, watch: Watch, interrupted: Callable[[], bool], others: Others = alone
) -> Outcome | None:
    """The task's ranks of this machine, from their start to their end; None of ranks that an interrupt ended. When it
    returns or raises, none is left.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fp8bench-", ignore_cleanup_errors=True) as name,
        process_tree(),
    ):
        folder = Path(name)
        task_path(folder).write_text(task.model_dump_json())
        (folder / "path.json").write_text(json.dumps(sys.path))
        group = _Group(folder, {rank: _start(folder, rank) for rank in task.ranks_here})
        clock = PhaseClock(Deadlines(task.config, timeout_s), len(task.ranks_here), time.monotonic())
        overdue = group.wait(clock, watch, interrupted, others)
        return None if interrupted() else Outcome(group.views(), overdue)


def _start(folder: Path, rank: int) -> "subprocess.Popen[bytes]":
    """A rank's process. Standard output is for results alone, and NCCL writes there when NCCL_DEBUG is set, as may a
    plug-in; so both streams of a rank go to standard error.
    """
    command = [sys.executable, "-c", _BOOT, str(folder), str(rank), str(os.getpid())]
    errors = (sys.__stderr__ or sys.stderr).fileno()
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True)


class _Group:
    """The ranks' processes, by rank, and how those ended that ended by themselves."""

    def __init__(self, folder: Path, processes: "Mapping[int, subprocess.Popen[bytes]]") -> None:
        self.folder = folder
        self.processes = processes
        self._ends: dict[int, End] = {}
        self._statuses: dict[int, Status | None] = {}
        self._seen_s = time.monotonic()

    def wait(
        self, clock: PhaseClock, watch: Watch, interrupted: Callable[[], bool], others: Others = alone
    ) -> Overdue | None:
        """Until all ranks have ended, or one failed and its siblings had their grace, or a phase took too long, which
        is returned; or until an interrupt. `watch` is called with rank 0's progress meanwhile, where it is here.
        """
        failed_s: float | None = None
        while len(self._ends) < len(self.processes) and not interrupted():
            self._look()
            now = time.monotonic()
            seen = self._progress()
            grace_s = others(seen, self._grace_s())
            failed_s = failed_s or (None if grace_s is None else now)
            if failed_s and grace_s is not None and now - failed_s >= grace_s:
                return None
            if 0 in self.processes and seen[0] is not None:
                watch(seen[0])
            overdue = clock.look(now, seen)
            if overdue is not None and failed_s is None:
                others(seen, 0.0)
                ranks = list(self.processes)
                return replace(overdue, ranks=tuple(ranks[place] for place in overdue.ranks))
            time.sleep(POLL_S)
        return None

    def views(self) -> tuple[RankView, ...]:
        """Of each rank. Call it once: where one left no report, those that still live write their stacks, and are to
        be ended.
        """
        found = {rank: report for rank in self.processes if (report := _read_report(self.folder, rank))}
        if len(found) == len(self.processes):
            return tuple(RankView(rank=rank, report=report, stage="done") for rank, report in found.items())
        self._look()
        seen = dict(zip(self.processes, self._progress(), strict=True))
        living = {rank: process.pid for rank, process in self.processes.items() if rank not in self._ends}
        stacks = ask_for_stacks(self.folder, living)
        return tuple(self._view(rank, found.get(rank), seen[rank], stacks) for rank in self.processes)

    def _view(self, rank: int, report: RankReport | None, progress: Progress | None, stacks: Stacks) -> RankView:
        end, error, epoch_s = self._ends.get(rank), read_error(self.folder, rank), time.time() - time.monotonic()
        return RankView(
            rank=rank,
            report=report,
            error=error and error.model_copy(update={"at_s": error.at_s + epoch_s}),
            ended=end is not None,
            exit_code=end.exit_code if end else None,
            alive_s=end.alive_s + epoch_s if end else 0.0,
            stage=progress.stage if progress else None,
            step=progress.step if progress else 0,
            stack=stacks.text.get(rank),
            stopped=rank in stacks.stopped,
            log=self._log(rank, progress, error, stacks),
        )

    def _log(self, rank: int, progress: Progress | None, error: RankError | None, stacks: Stacks) -> str:
        """A rank's part of the log: how it ended, how far it had come, its traceback, and what faulthandler wrote."""
        end = self._ends.get(rank)
        how = f"ended by itself, exit code {end.exit_code}" if end else f"alive; {stacks.where(rank)}"
        came = "had not begun"
        if progress is not None:
            ago_s = time.monotonic() - progress.at_s
            came = f"in the phase {progress.stage!r}, step {progress.step}, last moved {ago_s:.0f} s ago"
        parts = [f"rank {rank}: {how}; {came}", error.traceback if error else "", stack_written(self.folder, rank)]
        return "\n".join(part.rstrip() for part in parts if part.strip())

    def _look(self) -> None:
        """Note who has ended since the last look."""
        before, self._seen_s = self._seen_s, time.monotonic()
        for rank, process in self.processes.items():
            if rank not in self._ends and (code := process.poll()) is not None:
                self._ends[rank] = End(rank, code, before)
                report = _read_report(self.folder, rank)
                self._statuses[rank] = report.status if report else None

    def _grace_s(self) -> float | None:
        """How long the others may go on after one that ended otherwise than well; None where none did."""
        found = set(self._statuses.values())
        if found & {None, "failed"}:
            return GRACE_S
        return PARTING_S if found - {"ok"} else None

    def _progress(self) -> list[Progress | None]:
        return [read_progress(rank_path(self.folder, rank, "progress")) for rank in self.processes]


def _read_report(folder: Path, rank: int) -> RankReport | None:
    path = rank_path(folder, rank, "report")
    return RankReport.model_validate_json(path.read_bytes()) if path.exists() else None
