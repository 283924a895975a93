"""What a launcher sees of the ranks on its machine when a run is over, and the reports that follow from it. Pure.

Launchers of several nodes combine what they see, so times are seconds since 1970: every machine has its own monotonic
clock.
"""

from collections.abc import Callable, Mapping, Sequence

from fp8bench.launch.processes import blame
from fp8bench.launch.processes.blame import Blame, End, Lost, Overdue
from fp8bench.launch.processes.rank import RankError, Stacks
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import STAGES, Progress, Stage


class RankView(Frozen):
    """What was seen of one rank. report, error: what it told. kept: what it had found, if it told no report. measured:
    whether that is a measurement. ended: whether it ended by itself, before anybody sent a signal, with this
    `exit_code`. alive_s: when it was last seen alive, in seconds since 1970. remedy: as of its `End`. stage: None if it
    had not begun. stack: from faulthandler, if it was requested. stopped: whether its process was. log: for the file
    next to the record.
    """

    rank: int
    report: RankReport | None = None
    kept: RankReport | None = None
    measured: bool = False
    error: RankError | None = None
    ended: bool = False
    exit_code: int | None = None
    alive_s: float = 0.0
    remedy: str | None = None
    stage: Stage | None = None
    step: int = 0
    stack: str | None = None
    stopped: bool = False
    log: str = ""

    @property
    def progress(self) -> Progress | None:
        return None if self.stage is None else Progress(self.stage, self.step, None)


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
        why = Blame(why.ranks, why.reason + _place(why, views, lost, where), why.cause, why.remedy)
    return [
        found.get(view.rank) or blame.report_of_failed(view.rank, why, found, view.log, view.kept, general)
        for view in views
    ]


def in_phase(_ranks: Sequence[int], stage: Stage | None) -> str:
    """Return the end of a reason when all ranks are on one machine: the phase alone."""
    return "" if stage is None else f", in the phase {stage!r}"


def _place(why: Blame, views: Sequence[RankView], lost: Sequence[Lost], where: Where) -> str:
    for node in lost:
        if node.ranks == why.ranks:
            return where((), node.stage)
    return where(why.ranks, None if why.cause == "timeout" else views[why.ranks[0]].stage or "starting")


def why_failed(views: Sequence[RankView], overdue: Overdue | None, lost: Sequence[Lost]) -> Blame | None:
    """Return why the run failed, or None if all ranks left a report, or nothing is known."""
    without = [view for view in views if view.report is None]
    errors: Mapping[int, RankError] = {view.rank: view.error for view in views if view.error is not None}
    ends = [End(view.rank, view.exit_code, view.alive_s, view.remedy) for view in without if view.ended]
    why = blame.of_deaths(ends, errors, lost)
    if why is None and overdue is not None:
        seen = [view.progress for view in views]
        texts = {view.rank: view.stack for view in views if view.stack is not None}
        stacks = Stacks(texts, frozenset(view.rank for view in views if view.stopped))
        return blame.of_delay(_furthest_behind(overdue, without), seen, stacks)
    return why


def _furthest_behind(overdue: Overdue, without: Sequence[RankView]) -> Overdue:
    """Return the ranks that are furthest behind. A launcher that sees only some ranks finds the latest of these; others
    may be further behind, and a rank that left a report has done its part.
    """
    stages = {view.rank: view.stage or "starting" for view in without}
    last = min(stages.values(), key=STAGES.index, default=overdue.stage)
    found = {rank for rank, stage in stages.items() if stage == last}
    if STAGES.index(last) >= STAGES.index(overdue.stage):
        last = overdue.stage
        late = {rank for rank in overdue.ranks if rank in stages}
        found = {*late, *(rank for rank, stage in stages.items() if stage == last)}
    return Overdue(tuple(sorted(found or stages)), last, overdue.limit_s)
