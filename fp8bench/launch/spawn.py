"""Fresh processes for each run, one a rank; and none of them left behind.

Each rank writes its report to a file of its own, whatever came of it: files need no reader that keeps up, and outlive
the process. When one rank fails the others wait for it in a collective, and when a phase takes too long all of them
may; so they are asked where they are, and ended. Whatever ends the run (its end, a failure, a deadline, a signal to
this process), no process that it brought about outlives it, and its folder is gone. When this process is killed the
kernel ends the ranks (see `lifeline`).

Ranks have a session of their own, so that Ctrl-C on the terminal reaches this process alone, which ends them in order.
The rendezvous is a file, not a port: looking for a free port and binding it later is a race. This module imports no
torch: a launcher has no use for it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8bench.launch import last_words, stacks
from fp8bench.launch.culprit import ONE_OR_ALL, Blame, End, culprit
from fp8bench.launch.deadlines import Deadlines, Overdue, PhaseClock, held_up_by
from fp8bench.launch.executor import Watch, quieten_the_profiler
from fp8bench.launch.interrupts import held_back
from fp8bench.launch.process_tree import ProcessTree
from fp8bench.launch.rank import Task, progress_path, report_path, task_path
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Status
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress, read_progress

GRACE_S = 3.0
"""For the siblings of a rank that failed: most fail too, and say where they were."""

PARTING_S = 30.0
"""For the siblings of a rank that refused: they have heard it, and end their loaders in order."""

POLL_S = 0.1

_BOOT = """
import json, pathlib, sys
folder, rank, parent = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.path[:] = json.loads((folder / "path.json").read_text())
from fp8bench.lifeline import leave_with
leave_with(parent)
from fp8bench.launch.rank import main
main(folder, rank)
"""
"""What a rank's interpreter runs: modules are found where the launcher finds them, and it is tied to that before
anything heavy is imported.
"""


class SpawnExecutor:
    """Runs each configuration in processes of its own."""

    def __init__(self, timeout_s: float | None = None) -> None:
        """timeout_s: of each phase; None: by the phase."""
        self.timeout_s = timeout_s

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport] | None:
        """Start the ranks, wait for them, and read what they wrote. Raises Interrupt once all are ended."""
        quieten_the_profiler()
        with (
            held_back() as interrupted,
            tempfile.TemporaryDirectory(prefix="fp8bench-", ignore_cleanup_errors=True) as name,
            ProcessTree(),
        ):
            folder = Path(name)
            task_path(folder).write_text(Task(config=config, trace=trace).model_dump_json())
            (folder / "path.json").write_text(json.dumps(sys.path))
            group = _Group(folder, [_start(folder, rank) for rank in range(config.world_size)])
            clock = PhaseClock(Deadlines(config, self.timeout_s), config.world_size, time.monotonic())
            overdue = group.wait(clock, watch, interrupted)
            # Interrupted, there is nothing to tell of: the ranks were well.
            return [] if interrupted() else group.reports(overdue)


def _start(folder: Path, rank: int) -> "subprocess.Popen[bytes]":
    """A rank's process. Results go to standard output, and nobody else: NCCL writes there when NCCL_DEBUG is set, and
    so may a plug-in.
    """
    command = [sys.executable, "-c", _BOOT, str(folder), str(rank), str(os.getpid())]
    told = (sys.__stderr__ or sys.stderr).fileno()
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=True)


@dataclass
class _Group:
    """The ranks' processes, by rank, and how those ended that ended by themselves."""

    folder: Path
    processes: "Sequence[subprocess.Popen[bytes]]"

    def __post_init__(self) -> None:
        self._ends: dict[int, End] = {}
        self._statuses: dict[int, Status | None] = {}
        self._seen_s = time.monotonic()

    def wait(self, clock: PhaseClock, watch: Watch, interrupted: Callable[[], bool]) -> Overdue | None:
        """Until all ranks have ended, or one failed and its siblings had their grace, or a phase took too long, which
        is returned; or until somebody interrupted. `watch` is told of rank 0's progress meanwhile.
        """
        failed_s: float | None = None
        while len(self._ends) < len(self.processes) and not interrupted():
            self._look()
            now = time.monotonic()
            grace_s = self._grace_s()
            failed_s = failed_s or (None if grace_s is None else now)
            if failed_s and grace_s is not None and now - failed_s > grace_s:
                return None
            seen = self._progress()
            if seen[0] is not None:
                watch(seen[0])
            overdue = clock.look(now, seen)
            if overdue is not None and failed_s is None:
                return overdue
            time.sleep(POLL_S)
        return None

    def reports(self, overdue: Overdue | None) -> list[RankReport]:
        """One a rank, by rank. Ask once: ranks that still live are asked where they are, and are to be ended then."""
        ranks = range(len(self.processes))
        found = {rank: report for rank in ranks if (report := _read_report(self.folder, rank))}
        if len(found) == len(ranks):
            return [found[rank] for rank in ranks]
        self._look()
        words = {rank: said for rank in ranks if (said := last_words.read(self.folder, rank))}
        ends = [end for rank, end in self._ends.items() if rank not in found]
        seen = self._progress()
        asked = stacks.ask(self.folder, {r: self.processes[r].pid for r in ranks if r not in self._ends})
        blame = culprit(ends, words)
        if blame is None and overdue is not None:
            blame = _too_late(overdue, held_up_by(overdue, seen, asked.stopped, asked.waiting), asked)
        logs = {rank: self._log(rank, seen[rank], words.get(rank), asked) for rank in ranks}
        return [found.get(rank) or _of_the_dead(rank, blame, found, logs[rank]) for rank in ranks]

    def _log(
        self, rank: int, progress: Progress | None, said: last_words.LastWords | None, asked: stacks.Stacks
    ) -> str:
        """A rank's part of the log: how it ended, how far it had come, its traceback, and what faulthandler wrote."""
        end = self._ends.get(rank)
        how = f"ended by itself, exit code {end.exit_code}" if end else f"alive; {asked.where(rank)}"
        came = "had not begun"
        if progress is not None:
            ago_s = time.monotonic() - progress.at_s
            came = f"in the phase {progress.stage!r}, step {progress.step}, last moved {ago_s:.0f} s ago"
        parts = [f"rank {rank}: {how}; {came}", said.traceback if said else "", stacks.written(self.folder, rank)]
        return "\n".join(part.rstrip() for part in parts if part.strip())

    def _look(self) -> None:
        """Note who has ended since the last look."""
        before, self._seen_s = self._seen_s, time.monotonic()
        for rank, process in enumerate(self.processes):
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
        return [read_progress(progress_path(self.folder, rank)) for rank in range(len(self.processes))]


def _read_report(folder: Path, rank: int) -> RankReport | None:
    path = report_path(folder, rank)
    return RankReport.model_validate_json(path.read_bytes()) if path.exists() else None


def _too_late(overdue: Overdue, ranks: tuple[int, ...], asked: stacks.Stacks) -> Blame:
    first = ranks[0]
    who = f"rank {first}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    where = asked.where(first) if len(ranks) == 1 else f"rank {first}: {asked.where(first)}"
    return Blame(
        ranks,
        f"{who} held up the phase {overdue.stage!r} for more than {overdue.limit_s:.0f} s: {where}",
        "timeout",
        "Raise --timeout if the phase needs longer, else find out what it waits for there",
    )


def _of_the_dead(rank: int, blame: Blame | None, found: Mapping[int, RankReport], log: str) -> RankReport:
    """The report of a rank that wrote none."""
    if blame is not None and rank in blame.ranks:
        return RankReport(
            rank=rank, status="failed", reason=blame.reason, cause=blame.cause, remedy=blame.remedy, log=log
        )
    stopped = [other for other, report in found.items() if report.status != "ok"]
    by = blame.ranks[0] if blame else next(iter(stopped), None)
    return RankReport(
        rank=rank,
        status="failed",
        collateral=True,
        reason=f"rank {rank} was ended because rank {by} failed",
        cause=blame.cause if blame else None,
        remedy=f"Fix what ended rank {by}" if by is not None else ONE_OR_ALL,
        log=log,
    )
