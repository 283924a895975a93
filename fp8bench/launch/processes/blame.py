"""Decides when a run has failed, and which rank made it fail. Pure.

A phase has a limit: its own, which `--timeout` replaces, plus several times what its steps are expected to last. Only
the ranks that are furthest behind are late: the others may be waiting for them. Of ranks that died, only what happened
before the launcher sent any signal counts: one that was ended or left without an error is dated by when it was last
seen alive, one that raised by when it did. The earliest is to blame. A lost connection to another rank, and SIGABRT, by
which a watchdog inside NCCL ends a process for the same reason, follow from another rank's end, and count only if
nothing else is known.
"""

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fp8bench import registry
from fp8bench.launch.processes.rank import SHOWN, End, RankError
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, RunFailed
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import STAGES, Progress, Stage

LIMIT_S: Mapping[Stage, float] = {**dict.fromkeys(STAGES, 600.0), "timing": 120.0, "done": 60.0}
"""Seconds without `--timeout`: far more than was ever seen, and less than a pointless wait may cost."""

COMPILING_S = 1800.0
"""The same for phases in which torch.compile may be at work: fifteen times the longest that was seen for ViT-Huge."""

COMPILE_IN: frozenset[Stage] = frozenset(("warming up", "capturing", "comparing", "profiling"))

FACTOR = 3.0
"""How many times longer than expected steps may take, on a host that others use too."""

IN_COLLECTIVES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "torch/autograd/graph.py", "torch/cuda/")
"""torch files in which a rank waits for other ranks, or for a GPU that does."""

_OF_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: "Somebody ended it, or the kernel did since the host ran out of memory: see `dmesg`",
    signal.SIGTERM: "Find out who ended it: a job scheduler, or another user",
}


def compiles(config: RunConfig) -> bool | None:
    """Return whether a run uses torch.compile, by its settings; None if the `auto` of an outside mode decides."""
    if config.compile != "auto":
        return config.compile != "off"
    return registry.modes()[config.mode].compiled_by_auto if config.device == "cuda" else False


def limit_s(config: RunConfig, timeout_s: float | None, progress: Progress | None) -> float:
    """Return how long the phase may last, by `--timeout` if it was given. progress: None if the rank has not begun."""
    stage: Stage = progress.stage if progress else "starting"
    own, expected_s = timeout_s, 0.0
    if own is None:
        own = COMPILING_S if stage in COMPILE_IN and compiles(config) is not False else LIMIT_S[stage]
    if progress is not None and stage == "warming up":
        expected_s = config.warmup * (progress.median_s or 0.0)
    elif progress is not None and stage == "timing":
        # The host's stamps alone underestimate this if it runs ahead of the device.
        pace_s = max(progress.pace_s or 0.0, progress.median_s or 0.0)
        expected_s = max(config.min_time_s, (progress.steps or config.steps) * pace_s)
    return own + FACTOR * expected_s


@dataclass(frozen=True)
class Overdue:
    """Ranks that did not get past a phase in time."""

    ranks: tuple[int, ...]
    stage: Stage
    limit_s: float


class PhaseClock:
    """How long each of these ranks has been in its phase, as their launcher saw it, from `now` on."""

    def __init__(self, config: RunConfig, timeout_s: float | None, ranks: Sequence[int], now: float) -> None:
        self._config, self._timeout_s, self._last = config, timeout_s, now
        self._stages: dict[int, Stage] = dict.fromkeys(ranks, "starting")
        self._waited = dict.fromkeys(ranks, 0.0)

    def look(self, now: float, seen: Sequence[Progress | None]) -> Overdue | None:
        """Return the ranks furthest behind if one of them is late. seen: every rank's progress, in their order."""
        # Time in which nobody looked, because Ctrl-Z stopped the launcher too, does not count.
        passed_s, self._last = min(now - self._last, 5.0), now
        for rank, progress in zip(self._stages, seen, strict=True):
            stage: Stage = progress.stage if progress else "starting"
            self._waited[rank] = self._waited[rank] + passed_s if stage == self._stages[rank] else 0.0
            self._stages[rank] = stage
        last = min(self._stages.values(), key=STAGES.index)
        behind = tuple(rank for rank, stage in self._stages.items() if stage == last)
        for rank, progress in zip(self._stages, seen, strict=True):
            if rank in behind and self._waited[rank] > (most_s := limit_s(self._config, self._timeout_s, progress)):
                return Overdue(behind, last, most_s)
        return None


class RankView(Frozen):
    """What was seen of one rank. Times are seconds since 1970, because every node has its own monotonic clock. kept:
    what it had found, if it told no report; measured: whether that is a measurement. end: if it ended by itself, before
    anybody sent a signal. stack: if it was requested; empty without an answer. stopped: whether its process was.
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

    @property
    def waits(self) -> bool:
        frame = innermost(self.stack or "")
        return any(part in frame for part in IN_COLLECTIVES)

    @property
    def doing(self) -> str:
        if self.stopped:
            return "its process is stopped"
        frame = innermost(self.stack or "")
        # The complete path is in the log: a record is passed on, and need not reveal whose home folder this was.
        return f"it is at {'/'.join(frame.split('/')[-SHOWN:])}" if frame else "it gives no answer"


def innermost(stack: str) -> str:
    """Return `FILE:LINE in FUNCTION` of the main thread, which faulthandler writes last; empty without an answer."""
    main = stack.rpartition("(most recent call first):")[2]
    found = re.search(r'^  File "(.*)", line (\d+) in (.*)$', main, re.MULTILINE)
    return "{}:{} in {}".format(*found.groups()) if found else ""


class NodeGone(RunFailed):
    """A node is gone with its ranks. at_s: of its last sign of life, since 1970. stage: of its ranks then."""

    def __init__(self, node: int, called: str, how: str, at_s: float, stage: Stage | None = None) -> None:
        remedy = "See what ended it there, and start all nodes again: what is kept is not repeated"
        super().__init__(f"{called} {how}", remedy, "host-death")
        self.node, self.how, self.at_s, self.stage = node, how, at_s, stage


@dataclass(frozen=True)
class Blame:
    """The ranks that made a run fail, and why. remedy: None for the general one."""

    ranks: tuple[int, ...]
    reason: str
    cause: Cause
    remedy: str | None = None


def reports_of(
    config: RunConfig, views: Sequence[RankView], overdue: Overdue | None = None, lost: Sequence[NodeGone] = ()
) -> list[RankReport]:
    """Return one report per rank, by rank. views: of every rank, by rank; empty for ranks of a lost node."""
    reports = {view.rank: view.report for view in views if view.report is not None}
    why = None
    if len(reports) < len(views):
        why = of_deaths(config, views, lost) or (of_delay(config, views, overdue) if overdue is not None else None)
    stopped = next((rank for rank, report in reports.items() if report.status != "ok"), None)
    by, general = why.ranks[0] if why else stopped, in_general(config)
    for view in views:
        told: dict[str, object] = {
            "collateral": True,
            "reason": f"rank {view.rank} was ended because rank {by} failed",
            "cause": why.cause if why else None,
            "remedy": f"Fix what ended rank {by}" if by is not None else general,
        }
        if why is not None and view.rank in why.ranks:
            told = {"reason": why.reason, "cause": why.cause, "remedy": why.remedy or general}
        had = view.kept or RankReport(rank=view.rank)
        reports.setdefault(view.rank, had.model_copy(update={"status": "failed", "log": view.log, **told}))
    return [reports[view.rank] for view in views]


def in_general(config: RunConfig) -> str:
    """Return what to do about a failure of which nothing more is known."""
    if config.device == "cuda" and config.world_size > 1:
        return "`--gpus 1` tells whether it is one GPU or the group"
    return "See where it came from, and correct that"


def numbered(what: str, numbers: Iterable[int]) -> str:
    """Return `node 1`, or `nodes 0, 1 and 3`."""
    *before, last = sorted(numbers)
    return f"{what}s {', '.join(map(str, before))} and {last}" if before else f"{what} {last}"


def _where(config: RunConfig, ranks: Sequence[int], stage: Stage | None) -> str:
    """Return the nodes of these ranks, if there are several, and the phase. Machines' names are private."""
    nodes = {rank // (config.world_size // config.nodes) for rank in ranks} if config.nodes > 1 else ()
    return (f", on {numbered('node', nodes)}" if nodes else "") + (f", in the phase {stage!r}" if stage else "")


def of_deaths(config: RunConfig, views: Sequence[RankView], lost: Sequence[NodeGone] = ()) -> Blame | None:
    """Return who is to blame, or None if nothing ended. lost: nodes, whose ranks have empty views."""
    # The first item is 0 for what may have made the run fail, and more for what follows from another rank's end.
    dated: list[tuple[int, float, int, Blame]] = []
    for view in views:
        rank, error, end = view.rank, view.error, view.end
        where = _where(config, (rank,), view.stage or "starting")
        if error is not None:
            reason = error.what if error.remedy is not None else f"rank {rank} died: {error.what}"
            found = Blame((rank,), reason + where, error.cause, error.remedy)
            dated.append((2 if error.connection_lost else 0, error.at_s, rank, found))
        elif end is not None and view.report is None:
            how = f"ended with exit code {end.exit_code}, without an error message"
            remedy: str | None = "Look for what calls exit in the mode, the workload or their libraries"
            if (number := -end.exit_code) > 0:
                name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
                how, remedy = f"ended by {name}", _OF_SIGNALS.get(number)
            found = Blame((rank,), f"rank {rank} died: {how}{where}", "host-death", end.remedy or remedy)
            dated.append((int(number == signal.SIGABRT), end.alive_s, rank, found))
    a_node = config.world_size // config.nodes
    for one in lost:
        ranks = tuple(range(one.node * a_node, (one.node + 1) * a_node))
        those = f"rank {ranks[0]}" if a_node == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        reason = f"node {one.node} with {those} {one.how}{_where(config, (), one.stage)}"
        remedy = "See what ended it there: `dmesg`, or the scheduler's log; then start all nodes again"
        dated.append((0, one.at_s, ranks[0], Blame(ranks, reason, "host-death", remedy)))
    return min(dated, key=lambda one: one[:3])[-1] if dated else None


def of_delay(config: RunConfig, views: Sequence[RankView], overdue: Overdue) -> Blame:
    """Return who is to blame for a delay. overdue: as a launcher saw it that may know some of the ranks only."""
    # Others may be further behind than the latest of those, and a rank that left a report has done its part.
    stages = {view.rank: view.stage or "starting" for view in views if view.report is None}
    last = min(stages.values(), key=STAGES.index)
    late = set[int]()
    if STAGES.index(last) >= STAGES.index(overdue.stage):
        last, late = overdue.stage, {rank for rank in overdue.ranks if rank in stages}
    behind = late | {rank for rank, stage in stages.items() if stage == last}
    ranks = tuple(view.rank for view in views if view.stopped)
    if not ranks:
        # Those that have begun the fewest steps, without those that only wait in a collective, unless all do.
        fewest = min(views[rank].step for rank in behind or stages)
        slowest = tuple(rank for rank in sorted(behind or stages) if views[rank].step == fewest)
        ranks = tuple(rank for rank in slowest if not views[rank].waits) or slowest
    doing = (f"rank {ranks[0]}: " if len(ranks) > 1 else "") + views[ranks[0]].doing
    reason = f"{numbered('rank', ranks)} held up the phase {last!r} for more than {overdue.limit_s:.0f} s: {doing}"
    remedy = "Raise --timeout if the phase needs longer, else find out what it waits for there"
    return Blame(ranks, reason + _where(config, ranks, None), "timeout", remedy)
