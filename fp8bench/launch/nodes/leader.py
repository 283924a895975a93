"""Node 0: an executor like any other, whose ranks are on several nodes; and one run on any node, whose ranks are
watched together with those on the others.

A rank that fails anywhere ends its run on all nodes; what they saw makes one record, and the session continues. A node
that is gone ends the session: its ranks count as the ones that failed, and nothing can run without it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fp8bench.launch.nodes.agent import Agent
from fp8bench.launch.nodes.messages import Ready, Turn, keyed
from fp8bench.launch.nodes.store import NodeGone
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.processes.blame import Lost, in_general
from fp8bench.launch.processes.rank import MEASURES_A_RUN, Task, Work
from fp8bench.launch.processes.server import Server
from fp8bench.launch.processes.watch import Others, Outcome, RankView, reports_of, run_ranks
from fp8bench.launch.signals import Interrupt, held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Session
from fp8bench.worker.progress import STAGES, Progress, Stage

READY_S = 60.0
"""Seconds that a node may take to check its GPUs."""

VIEW_S = 40.0
"""Seconds that another node's ranks may end later than this node's: they part in order, or have a grace of 30 s."""

PARTING_S = 10.0
"""Seconds that other nodes have, once a signal ended one, to tell what they measured. torchrun kills after 30 s."""

LOOK_S = 0.5
"""Seconds between two looks at the store while ranks run."""

RunRanks = Callable[[Task, float | None, Watch, Callable[[], bool], Others], Outcome | None]
"""A function with the signature of `watch.run_ranks`; tests pass another."""


class Leader(Executor):
    """Runs each configuration on all nodes."""

    def __init__(
        self, agent: Agent, timeout_s: float | None = None, work: Work = MEASURES_A_RUN, run: RunRanks | None = None
    ) -> None:
        """timeout_s: of each phase; None for each phase's own. work: what each rank does."""
        self.agent = agent
        self.timeout_s = timeout_s
        self.work = work
        self.place: Session | None = None
        """The place of the next run's record, if it is kept: another node may have to keep it."""
        self._server = Server()
        self._run_ranks = run or partial(run_ranks, server=self._server)
        self._turns = 0
        self._gone: NodeGone | None = None

    @property
    def machines(self) -> tuple[MachineIdentity | None, ...]:
        """The machines of all nodes, by node."""
        return self.agent.verdict.machines

    def begins(self, place: Session) -> None:
        self.place = place

    def close(self) -> None:
        self._server.close()

    def require_ready(self) -> None:
        """Raise the error that ended a node, if any: nothing more can run then."""
        if self._gone is not None:
            raise self._gone

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: Sequence[str] = ()
    ) -> list[RankReport]:
        """Run as `Executor.run` does. The reports name their machines; the report of a node's first rank contains that
        node's marks. Raises ModeUnavailable if another node cannot run, and RunFailed if a node is gone since an
        earlier run.
        """
        self.require_ready()
        agent, turn, place = self.agent, self._turns, self.place
        self._turns, self.place = turn + 1, None
        told = Turn(config=config, place=place, work=self.work)
        agent.store.put(keyed("turn", turn), told)
        lost: list[NodeGone] = []
        on_nodes: dict[int, tuple[str, ...]] = {}
        for node in agent.others:
            try:
                ready = agent.await_message(keyed("ready", turn, node), node, Ready, READY_S)
            except NodeGone as gone:
                lost.append(gone)
                continue
            if ready.refusal is not None:
                raise ready.refusal.error(f"{agent.called(node)}: ")
            on_nodes[node] = ready.marks
        seen: dict[int, Outcome] = {}
        if not lost:
            agent.store.put(keyed("go", turn), True)
            try:
                self._run_here_and_there(turn, told, watch, trace, seen, lost)
            except Interrupt as interrupt:
                found = [view.report or (view.kept if view.measured else None) for view in all_ranks(config, seen)]
                reports = [report for report in found if report is not None]
                # Only if every rank had timed its steps before the signal came.
                all_there = len(reports) == len(found)
                interrupt.reports = self._with_circumstances(config, reports if all_there else [], on_nodes)
                raise
        if lost:
            self._gone = lost[0]
        return self._with_circumstances(config, reports_on_nodes(config, seen, lost), on_nodes)

    def _run_here_and_there(
        self, turn: int, told: Turn, watch: Watch, trace: Path | None, seen: dict[int, Outcome], lost: list[NodeGone]
    ) -> None:
        """Add to `seen`, by node, what became of ranks, and to `lost` the nodes that are gone. Raises Interrupt if a
        signal ended a node; then other nodes have had a moment to tell of their ranks, which may have been interrupted
        too, or have lost the ranks of this node.
        """
        agent = self.agent
        try:
            with held_back() as interrupted:
                mine, gone = run_turn(agent, turn, told, watch, interrupted, self.timeout_s, self._run_ranks, trace)
                if mine is not None:
                    seen[0] = mine
            if isinstance(gone, Interrupt):
                raise gone
        except Interrupt:
            deadline = time.monotonic() + PARTING_S
            for node in agent.others if seen else ():
                with suppress(NodeGone, Interrupt):
                    seen[node] = self._view(turn, node, deadline)
            raise
        if gone is not None:
            seen[0] = left_behind(mine)
            lost.append(gone)
        elif mine is not None:
            deadline = time.monotonic() + VIEW_S
            for node in agent.others:
                try:
                    seen[node] = self._view(turn, node, deadline)
                except NodeGone as ended:
                    lost.append(ended)

    def _view(self, turn: int, node: int, deadline: float) -> Outcome:
        key = keyed("view", turn, node)
        found = self.agent.await_message(key, node, Outcome, max(1.0, deadline - time.monotonic()))
        self.agent.store.drop(key)
        return found

    def _with_circumstances(
        self, config: RunConfig, reports: Sequence[RankReport], marks: dict[int, tuple[str, ...]]
    ) -> list[RankReport]:
        a_node = config.world_size // config.nodes
        found = []
        for report in on_machines(reports, config, self.machines):
            own = marks.get(report.rank // a_node, ()) if report.rank % a_node == 0 else ()
            general = self.agent.verdict.marks if report.rank == 0 else ()
            found.append(report.model_copy(update={"marks": (*general, *own, *report.marks)}))
        return found


def reports_on_nodes(config: RunConfig, seen: dict[int, Outcome], gone: Sequence[NodeGone]) -> list[RankReport]:
    """Return one report per rank, by rank. seen: by node. gone: nodes that ended too early. Records name nodes by
    number alone: machines' names are private.
    """
    a_node = config.world_size // config.nodes
    lost = []
    for one in gone:
        ranks = range(one.node * a_node, (one.node + 1) * a_node)
        those = f"rank {ranks[0]}" if a_node == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        lost.append(Lost(tuple(ranks), one.at_s, f"node {one.node} with {those} {one.how}", one.stage))
    overdue = next((one.overdue for _, one in sorted(seen.items()) if one.overdue is not None), None)

    def where(ranks: Sequence[int], stage: Stage | None) -> str:
        nodes = sorted({rank // a_node for rank in ranks})
        *before, last = map(str, nodes) if nodes else ("",)
        on = f", on nodes {', '.join(before)} and {last}" if before else f", on node {last}" if last else ""
        return on + ("" if stage is None else f", in the phase {stage!r}")

    return reports_of(all_ranks(config, seen), overdue, lost, where, in_general(config))


def on_machines(
    reports: Sequence[RankReport], config: RunConfig, machines: Sequence[MachineIdentity | None]
) -> list[RankReport]:
    """Return the reports, each with its machine. machines: by node."""
    a_node = config.world_size // config.nodes
    return [report.model_copy(update={"machine": machines[report.rank // a_node]}) for report in reports]


def all_ranks(config: RunConfig, seen: dict[int, Outcome]) -> list[RankView]:
    """Return the views of all ranks, by rank; empty views for ranks that no node sees."""
    views = {view.rank: view for node in seen.values() for view in node.views}
    return [views.get(rank) or RankView(rank=rank) for rank in range(config.world_size)]


def left_behind(outcome: Outcome | None) -> Outcome:
    """Return only what is kept of ranks that were ended because another node is gone: what they had found, and their
    part of the log. How they ended says nothing about the cause.
    """
    views = outcome.views if outcome is not None else ()
    return Outcome(tuple(RankView(rank=one.rank, kept=one.kept, log=one.log) for one in views))


def run_turn(
    agent: Agent,
    turn: int,
    told: Turn,
    watch: Watch,
    interrupted: Callable[[], bool],
    timeout_s: float | None,
    run: RunRanks,
    trace: Path | None = None,
) -> tuple[Outcome | None, NodeGone | Interrupt | None]:
    """Run this node's ranks from their start to their end. Return what was seen of them, None if a signal ended them
    before they had timed their steps, and why they were ended early if that is because of another node.
    """
    place = agent.place
    host = f"[{place.address}]" if ":" in place.address else place.address
    meet = f"store://{host}:{place.port}/fp8bench/{place.attempt}/group/{turn}"
    task = Task(config=told.config, work=told.work, trace=trace, node=place.node, meet=meet)
    elsewhere = Elsewhere(agent, turn)
    try:
        seen = run(task, timeout_s, watch, lambda: interrupted() or isinstance(elsewhere.gone, Interrupt), elsewhere)
    finally:
        agent.stage = None
    return seen, elsewhere.gone


class Elsewhere:
    """The other nodes, as this node's launcher asks about them: how long its own ranks may go on after a rank elsewhere
    failed, and that they end at once if another node is gone. gone: that node, or the signal that ended it.
    """

    def __init__(self, agent: Agent, turn: int) -> None:
        self.gone: NodeGone | Interrupt | None = None
        self._agent = agent
        self._key = keyed("stop", turn)
        self._due = 0.0
        self._told = False
        self._grace_s: float | None = None

    def __call__(self, seen: Sequence[Progress | None], grace_s: float | None) -> float | None:
        agent = self._agent
        # Of the rank that is furthest behind.
        agent.stage = min(("starting" if one is None else one.stage for one in seen), key=STAGES.index)
        if self.gone is None:
            try:
                if grace_s is not None and not self._told:
                    self._told = True
                    agent.store.put(self._key, grace_s)
                if self._grace_s is None and (now := time.monotonic()) >= self._due:
                    self._due = now + LOOK_S
                    agent.store.say(agent.stage)
                    self._grace_s = agent.store.get(self._key, float)
                    if self._grace_s is None and agent.ended() is not None:
                        self._grace_s = 0.0
                    agent.require_others()
            except (NodeGone, Interrupt) as gone:
                self.gone, self._grace_s = gone, 0.0
        return min((one for one in (grace_s, self._grace_s) if one is not None), default=None)
