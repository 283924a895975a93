"""The ranks of a run on this machine, watched from their start to their end.

When one rank fails, the others wait for it in a collective, and when a phase takes too long, all of them may be
waiting. So their stacks are requested, and then they are ended. What every rank had found until then is kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fp8bench.launch.processes import Watch
from fp8bench.launch.processes.ahead import Ahead
from fp8bench.launch.processes.blame import Deadlines, Overdue, PhaseClock, in_general
from fp8bench.launch.processes.rank import (
    MEASURES_A_RUN,
    RankError,
    Stacks,
    Task,
    Work,
    rank_path,
    stack_written,
)
from fp8bench.launch.processes.start import POLL_S, Ranks, started
from fp8bench.launch.processes.views import RankView, in_phase, reports_of
from fp8bench.launch.signals import Interrupt, held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Status
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress, read_progress

ENTRY = "fp8bench.launch.processes.rank:measure"

GRACE_S = 3.0
"""Seconds for the siblings of a rank that failed: most fail too, and write where they were."""

PARTING_S = 30.0
"""Seconds for the siblings of a rank that refused: they refuse too, and end their loaders in order."""

FINISH_S = 2.0
"""Seconds, after a signal, for ranks that have timed their steps as others have, and are about to say so."""

UNPROFILED = "not profiled: a signal ended the process after its last timed step"
"""The mark of such a run."""

Others = Callable[[Sequence[Progress | None], float | None], float | None]
"""Called a few times a second with the progress of each rank, and with the seconds they may go on since a rank did not
end well (None if all did). Returns that number, or the one that ranks elsewhere leave them.
"""


def alone(_seen: Sequence[Progress | None], grace_s: float | None) -> float | None:
    """Return the grace unchanged: no other node has ranks."""
    return grace_s


@dataclass(frozen=True)
class Outcome:
    """What the launcher saw of its ranks, by rank, and which of them were late."""

    views: tuple[RankView, ...]
    overdue: Overdue | None = None


class SpawnExecutor:
    """Runs each configuration in fresh processes."""

    def __init__(self, timeout_s: float | None = None, work: Work = MEASURES_A_RUN, ahead: Ahead | None = None) -> None:
        """timeout_s: of each phase; None for each phase's own. work: what each rank does. ahead: starts ranks of a
        following run early; the caller tells it what to expect, and closes it.
        """
        self.timeout_s = timeout_s
        self.work = work
        self.ahead = ahead

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport]:
        """Start the ranks, wait for them, and read what they wrote. Raises Interrupt once all ranks are ended, with
        their reports if all of them had timed their steps.
        """
        reports: list[RankReport] = []
        try:
            with held_back() as interrupted:
                task = Task(config=config, trace=trace, work=self.work)
                done = run_ranks(task, self.timeout_s, watch, interrupted, ahead=self.ahead)
                reports = [] if done is None else reports_of(done.views, done.overdue, (), in_phase, in_general(config))
        except Interrupt as interrupt:
            interrupt.reports = reports
            raise
        return reports


def run_ranks(
    task: Task,
    timeout_s: float | None,
    watch: Watch,
    interrupted: Callable[[], bool],
    others: Others = alone,
    ahead: Ahead | None = None,
) -> Outcome | None:
    """Run the task's ranks of this machine from their start to their end; return None if an interrupt ended them before
    they had timed their steps. No rank is left when it returns or raises.
    """
    with started(task.model_dump_json(), task.ranks_here, ENTRY, ahead) as ranks:
        group = _Group(ranks, task.config.nodes)
        if ahead is not None:
            watch = _also(watch, ahead)
        clock = PhaseClock(Deadlines(task.config, timeout_s), len(task.ranks_here), time.monotonic())
        overdue = group.wait(clock, watch, interrupted, others)
        return group.measured() if interrupted() else Outcome(group.views(), overdue)


def _also(watch: Watch, ahead: Ahead) -> Watch:
    def both(progress: Progress) -> None:
        watch(progress)
        ahead.look(progress.stage)

    return both


class _Group:
    """The ranks of a run: what they report, and how long they are waited for."""

    def __init__(self, ranks: Ranks, nodes: int) -> None:
        self._ranks = ranks
        self._nodes = nodes
        self._numbers = list(ranks.processes)
        self._statuses: dict[int, Status | None] = {}

    def wait(
        self, clock: PhaseClock, watch: Watch, interrupted: Callable[[], bool], others: Others = alone
    ) -> Overdue | None:
        """Wait until all ranks have ended, one failed and its siblings had their grace, an interrupt came, or a phase
        took too long; return an `Overdue` in the last case. `watch` is called with rank 0's progress meanwhile, if rank
        0 is here.
        """
        failed_s: float | None = None
        for now in self._ranks.looks(interrupted):
            seen = self._progress()
            grace_s = others(seen, self._grace_s())
            failed_s = failed_s or (None if grace_s is None else now)
            if failed_s and grace_s is not None and now - failed_s >= grace_s:
                return None
            if self._numbers[0] == 0 and seen[0] is not None:
                watch(seen[0])
            overdue = clock.look(now, seen)
            if overdue is not None and failed_s is None:
                others(seen, 0.0)
                return replace(overdue, ranks=tuple(self._numbers[place] for place in overdue.ranks))
        return None

    def views(self) -> tuple[RankView, ...]:
        """Return each rank's view. Call this once: if a rank left no report, the ranks that still live write their
        stacks, and must then be ended.
        """
        self._ranks.look()
        found = {rank: report for rank in self._numbers if (report := _read(self._ranks.report(rank)))}
        if len(found) == len(self._numbers):
            return tuple(RankView(rank=rank, report=report, stage="done") for rank, report in found.items())
        seen = dict(zip(self._numbers, self._progress(), strict=True))
        stacks = self._ranks.stacks()
        return tuple(self._view(rank, found.get(rank), seen[rank], stacks) for rank in self._numbers)

    def measured(self) -> Outcome | None:
        """Return what the ranks have reported, or have kept if that is enough; None if a rank has neither. Ranks that
        are about to say so are waited for.
        """
        deadline = time.monotonic() + FINISH_S
        while True:
            self._ranks.look()
            found = [self._measured(rank) for rank in self._numbers]
            views = [RankView(rank=one.rank, report=one, stage="done") for one in found if one is not None]
            if len(views) == len(found):
                return Outcome(tuple(views))
            if not views or time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)

    def _measured(self, rank: int) -> RankReport | None:
        # Ranks of several nodes fail when a signal ends those of another one.
        failed = self._nodes == 1 and self._ranks.error(rank) is not None
        kept = _read(self._ranks.kept(rank)) if self._ranks.enough(rank) and not failed else None
        if kept is not None and rank == 0:
            # Of this rank alone there is a profile.
            kept = kept.model_copy(update={"marks": (*kept.marks, UNPROFILED)})
        return _read(self._ranks.report(rank)) or kept

    def _view(self, rank: int, report: RankReport | None, progress: Progress | None, stacks: Stacks) -> RankView:
        ranks, epoch_s = self._ranks, time.time() - time.monotonic()
        end, error = ranks.ends.get(rank), ranks.error(rank)
        return RankView(
            rank=rank,
            report=report,
            kept=_read(ranks.kept(rank)),
            measured=ranks.enough(rank),
            error=error and error.model_copy(update={"at_s": error.at_s + epoch_s}),
            ended=end is not None,
            exit_code=end.exit_code if end else None,
            alive_s=end.alive_s + epoch_s if end else 0.0,
            remedy=end.remedy if end else None,
            stage=progress.stage if progress else None,
            step=progress.step if progress else 0,
            stack=stacks.text.get(rank),
            stopped=rank in stacks.stopped,
            log=self._log(rank, progress, error, stacks),
        )

    def _log(self, rank: int, progress: Progress | None, error: RankError | None, stacks: Stacks) -> str:
        """Return a rank's part of the log: how it ended, its progress, its traceback, and what faulthandler wrote."""
        end = self._ranks.ends.get(rank)
        how = f"ended by itself, exit code {end.exit_code}" if end else f"alive; {stacks.where(rank)}"
        came = "had not begun"
        if progress is not None:
            ago_s = time.monotonic() - progress.at_s
            came = f"in the phase {progress.stage!r}, step {progress.step}, last moved {ago_s:.0f} s ago"
        written = stack_written(self._ranks.folder, rank)
        parts = [f"rank {rank}: {how}; {came}", error.traceback if error else "", written]
        return "\n".join(part.rstrip() for part in parts if part.strip())

    def _grace_s(self) -> float | None:
        """Return how long the ranks may go on after one did not end well; None if all ended well."""
        for rank in self._ranks.ends.keys() - self._statuses.keys():
            report = _read(self._ranks.report(rank))
            self._statuses[rank] = report.status if report else None
        found = set(self._statuses.values())
        if found & {None, "failed"}:
            return GRACE_S
        return PARTING_S if found - {"ok"} else None

    def _progress(self) -> list[Progress | None]:
        return [read_progress(rank_path(self._ranks.folder, rank, "progress")) for rank in self._numbers]


def _read(text: str | None) -> RankReport | None:
    return None if text is None else RankReport.model_validate_json(text)
