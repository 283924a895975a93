"""The ranks of a run on this machine, watched from their start to their end.

When one rank fails, the others wait for it in a collective, and when a phase takes too long, all of them may be
waiting. So their stacks are requested, and then they are ended. What every rank had found until then is kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fp8bench import registry
from fp8bench.launch.processes import Executor, Watch, blame
from fp8bench.launch.processes.blame import (
    Blame,
    Deadlines,
    End,
    Lost,
    Overdue,
    PhaseClock,
    Stacks,
    in_general,
    stack_written,
)
from fp8bench.launch.processes.rank import MEASURES_A_RUN, RankError, Task, Work, rank_path
from fp8bench.launch.processes.server import POLL_S, Server
from fp8bench.launch.processes.start import Ranks, started
from fp8bench.launch.signals import Interrupt, held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Status
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Session
from fp8bench.worker.progress import STAGES, Progress, Stage, read_progress

ENTRY = "fp8bench.launch.processes.rank:measure"
IMPORTED_AS = {"torchao": "torchao.float8", "transformer_engine": "transformer_engine.pytorch"}
"""What modes import, by the package that they need."""

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


class RankView(Frozen):
    """What was seen of one rank. Launchers of several nodes combine what they see, so times are seconds since 1970:
    every machine has its own monotonic clock. report, error: what it told. kept: what it had found, if it told no
    report. measured: whether that is a measurement. end: if it ended by itself, before anybody sent a signal. stage:
    None if it had not begun. stack: from faulthandler, if it was requested. stopped: whether its process was. log: for
    the file next to the record.
    """

    rank: int
    report: RankReport | None = None
    kept: RankReport | None = None
    measured: bool = False
    error: RankError | None = None
    end: End | None = None
    stage: Stage | None = None
    step: int = 0
    stack: str | None = None
    stopped: bool = False
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the launcher saw of its ranks, by rank, and which of them were late."""

    views: tuple[RankView, ...]
    overdue: Overdue | None = None


class SpawnExecutor(Executor):
    """Runs each configuration in processes of its own, which one server starts."""

    def __init__(self, timeout_s: float | None = None, work: Work = MEASURES_A_RUN) -> None:
        """timeout_s: of each phase; None for each phase's own. work: what each rank does."""
        self.timeout_s = timeout_s
        self.work = work
        self.server = Server()

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, place: Session | None = None
    ) -> list[RankReport]:
        """Start the ranks, wait for them, and read what they wrote. Raises Interrupt once all ranks are ended, with
        their reports if all of them had timed their steps.
        """
        reports: list[RankReport] = []
        try:
            with held_back() as interrupted:
                task = Task(config=config, trace=trace, work=self.work)
                done = run_ranks(task, self.timeout_s, watch, interrupted, server=self.server)
                reports = [] if done is None else reports_of(done.views, done.overdue, (), in_phase, in_general(config))
        except Interrupt as interrupt:
            interrupt.reports = reports
            raise
        return reports

    def close(self) -> None:
        self.server.close()


def run_ranks(
    task: Task,
    timeout_s: float | None,
    watch: Watch,
    interrupted: Callable[[], bool],
    others: Others = alone,
    *,
    server: Server,
) -> Outcome | None:
    """Run the task's ranks of this machine from their start to their end; return None if an interrupt ended them before
    they had timed their steps. No rank is left when it returns or raises. server: starts them.
    """
    config = task.config
    with started(task.model_dump_json(), task.ranks_here, ENTRY, server, modules_of(config)) as ranks:
        clock = PhaseClock(Deadlines(config, timeout_s), len(task.ranks_here), time.monotonic())
        overdue = _wait(ranks, clock, watch, interrupted, others)
        if interrupted():
            return _measured(ranks, config.nodes)
        return Outcome(_views(ranks), overdue)


def modules_of(config: RunConfig) -> tuple[str, ...]:
    """Return what the ranks of a run will import, as far as it is of libraries that this package knows."""
    mode, workload = registry.modes().get(config.mode), registry.find_workload(config.workload)
    needs = (workload.needs, mode.needs if mode is not None else None)
    found = [IMPORTED_AS.get(one.module, one.module) for one in needs if one is not None and one.module is not None]
    return ("torch", *found, "fp8bench.worker.main")


def _wait(
    ranks: Ranks, clock: PhaseClock, watch: Watch, interrupted: Callable[[], bool], others: Others
) -> Overdue | None:
    """Wait until all ranks have ended, one failed and its siblings had their grace, an interrupt came, or a phase took
    too long; return an `Overdue` in the last case. `watch` is called with rank 0's progress meanwhile, if it is here.
    """
    numbers = list(ranks.processes)
    statuses: dict[int, Status | None] = {}
    failed_s: float | None = None
    for now in ranks.looks(interrupted):
        for rank in ranks.ends.keys() - statuses.keys():
            report = _read(ranks.said(rank, "report"))
            statuses[rank] = report.status if report else None
        ended = set(statuses.values())
        # How long the ranks may go on after one did not end well.
        grace_s = GRACE_S if ended & {None, "failed"} else PARTING_S if ended - {"ok"} else None
        seen = _progress(ranks)
        grace_s = others(seen, grace_s)
        failed_s = failed_s or (None if grace_s is None else now)
        if failed_s and grace_s is not None and now - failed_s >= grace_s:
            return None
        if numbers[0] == 0 and seen[0] is not None:
            watch(seen[0])
        overdue = clock.look(now, seen)
        if overdue is not None and failed_s is None:
            others(seen, 0.0)
            return replace(overdue, ranks=tuple(numbers[place] for place in overdue.ranks))
    return None


def _progress(ranks: Ranks) -> list[Progress | None]:
    return [read_progress(rank_path(ranks.folder, rank, "progress")) for rank in ranks.processes]


def _measured(ranks: Ranks, nodes: int) -> Outcome | None:
    """Return what the ranks have reported, or have kept if that is enough; None if a rank has neither. Ranks that are
    about to say so are waited for.
    """
    deadline = time.monotonic() + FINISH_S
    while True:
        ranks.look()
        views = []
        for rank in ranks.processes:
            # Ranks of several nodes fail when a signal ends those of another one.
            failed = nodes == 1 and ranks.error(rank) is not None
            kept = _read(ranks.said(rank, "kept")) if ranks.said(rank, "enough") is not None and not failed else None
            if kept is not None and rank == 0:
                # Of this rank alone there is a profile.
                kept = kept.model_copy(update={"marks": (*kept.marks, UNPROFILED)})
            if (report := _read(ranks.said(rank, "report")) or kept) is not None:
                views.append(RankView(rank=rank, report=report, stage="done"))
        if len(views) == len(ranks.processes):
            return Outcome(tuple(views))
        if not views or time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)


def _views(ranks: Ranks) -> tuple[RankView, ...]:
    """Return each rank's view. Call this once: if a rank left no report, the ranks that still live write their stacks,
    and must then be ended.
    """
    ranks.look()
    found = {rank: report for rank in ranks.processes if (report := _read(ranks.said(rank, "report")))}
    if len(found) == len(ranks.processes):
        return tuple(RankView(rank=rank, report=report, stage="done") for rank, report in found.items())
    progress, stacks = _progress(ranks), ranks.stacks()
    now, epoch_s, views = time.monotonic(), time.time() - time.monotonic(), []
    for rank, came in zip(ranks.processes, progress, strict=True):
        end, error = ranks.ends.get(rank), ranks.error(rank)
        how = f"ended by itself, exit code {end.exit_code}" if end else f"alive; {stacks.where(rank)}"
        where = "had not begun"
        if came is not None:
            where = f"in the phase {came.stage!r}, step {came.step}, last moved {now - came.at_s:.0f} s ago"
        log = (f"rank {rank}: {how}; {where}", error.traceback if error else "", stack_written(ranks.folder, rank))
        views.append(
            RankView(
                rank=rank,
                report=found.get(rank),
                kept=_read(ranks.said(rank, "kept")),
                measured=ranks.said(rank, "enough") is not None,
                error=error and error.model_copy(update={"at_s": error.at_s + epoch_s}),
                end=end and replace(end, alive_s=end.alive_s + epoch_s),
                stage=came.stage if came else None,
                step=came.step if came else 0,
                stack=stacks.text.get(rank),
                stopped=rank in stacks.stopped,
                log="\n".join(part.rstrip() for part in log if part.strip()),
            )
        )
    return tuple(views)


def _read(text: str | None) -> RankReport | None:
    return None if text is None else RankReport.model_validate_json(text)


Where = Callable[[Sequence[int], Stage | None], str]
"""Returns the end of a reason: where these ranks are, and their phase if the reason does not say it."""


def reports_of(
    views: Sequence[RankView],
    overdue: Overdue | None = None,
    lost: Sequence[Lost] = (),
    where: Where = lambda _ranks, _stage: "",
    general: str = blame.LOOK,
) -> list[RankReport]:
    """Return one report per rank, by rank. views: of every rank, by rank; empty for ranks of a `lost` node. general:
    the remedy of a failure of which nothing more is known.
    """
    found = {view.rank: view.report for view in views if view.report is not None}
    if len(found) == len(views):
        return [found[view.rank] for view in views]
    why = why_failed(views, overdue, lost)
    if why is not None:
        gone = next((node for node in lost if node.ranks == why.ranks), None)
        stage = None if why.cause == "timeout" else views[why.ranks[0]].stage or "starting"
        place = where(why.ranks, stage) if gone is None else where((), gone.stage)
        why = replace(why, reason=why.reason + place, remedy=why.remedy or general)
    stopped = next((rank for rank, report in found.items() if report.status != "ok"), None)
    by = why.ranks[0] if why else stopped
    for view in views:
        told: dict[str, object]
        if why is not None and view.rank in why.ranks:
            told = {"reason": why.reason, "cause": why.cause, "remedy": why.remedy}
        else:
            told = {
                "collateral": True,
                "reason": f"rank {view.rank} was ended because rank {by} failed",
                "cause": why.cause if why else None,
                "remedy": f"Fix what ended rank {by}" if by is not None else general,
            }
        had = view.kept or RankReport(rank=view.rank)
        found.setdefault(view.rank, had.model_copy(update={"status": "failed", "log": view.log, **told}))
    return [found[view.rank] for view in views]


def in_phase(_ranks: Sequence[int], stage: Stage | None) -> str:
    """Return the end of a reason when all ranks are on one machine: the phase alone."""
    return "" if stage is None else f", in the phase {stage!r}"


def why_failed(views: Sequence[RankView], overdue: Overdue | None, lost: Sequence[Lost]) -> Blame | None:
    """Return why the run failed, or None if all ranks left a report, or nothing is known."""
    without = [view for view in views if view.report is None]
    errors = {view.rank: view.error for view in views if view.error is not None}
    ends = [view.end for view in without if view.end is not None]
    why = blame.of_deaths(ends, errors, lost)
    if why is not None or overdue is None:
        return why
    # A launcher that sees only some ranks finds the latest of these; others may be further behind, and a rank that left
    # a report has done its part.
    stages = {view.rank: view.stage or "starting" for view in without}
    last = min(stages.values(), key=STAGES.index, default=overdue.stage)
    late = set()
    if STAGES.index(last) >= STAGES.index(overdue.stage):
        last = overdue.stage
        late = {rank for rank in overdue.ranks if rank in stages}
    behind = late | {rank for rank, stage in stages.items() if stage == last}
    overdue = Overdue(tuple(sorted(behind or stages)), last, overdue.limit_s)
    texts = {view.rank: view.stack for view in views if view.stack is not None}
    stacks = Stacks(texts, frozenset(view.rank for view in views if view.stopped))
    seen = [None if view.stage is None else Progress(view.stage, view.step, None) for view in views]
    return blame.of_delay(overdue, seen, stacks)
