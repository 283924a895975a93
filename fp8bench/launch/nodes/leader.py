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
from typing import TypeVar

from fp8bench.launch.nodes.agent import Agent, NodeGone
from fp8bench.launch.nodes.messages import NodeView, Ready, Status, Stop, Turn, keyed
from fp8bench.launch.nodes.store import StoreLost
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.processes.blame import Lost, in_general
from fp8bench.launch.processes.rank import MEASURES_A_RUN, Rendezvous, Task, Work
from fp8bench.launch.processes.watch import Others, Outcome, RankView, reports_of, run_ranks
from fp8bench.launch.signals import Interrupt, held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Session
from fp8bench.worker.progress import STAGES, Progress, Stage

Answer = TypeVar("Answer", Ready, NodeView)

READY_S = 60.0
"""Seconds that a node may take to check its GPUs."""

VIEW_S = 40.0
"""Seconds that another node's ranks may end later than this node's: they part in order, or have a grace of 30 s."""

PARTING_S = 10.0
"""Seconds that other nodes have, once a signal ended one, to tell what they measured. torchrun kills after 30 s."""

LOOK_S = 0.5
"""Seconds between two looks at the store while ranks run."""

Gone = NodeGone | StoreLost | Interrupt
"""What ends a run because of another node: the node, or the store that it holds, is gone, or a signal ended it."""

RunRanks = Callable[[Task, float | None, Watch, Callable[[], bool], Others], Outcome | None]
"""A function with the signature of `spawn.run_ranks`; tests pass another."""


class Leader(Executor):
    """Runs each configuration on all nodes."""

    def __init__(
        self,
        agent: Agent,
        timeout_s: float | None = None,
        work: Work = MEASURES_A_RUN,
        run: RunRanks = run_ranks,
    ) -> None:
        """timeout_s: of each phase; None for each phase's own. work: what each rank does."""
        self.agent = agent
        self.timeout_s = timeout_s
        self.work = work
        self.place: Session | None = None
        """The place of the next run's record, if it is kept: another node may have to keep it."""
        self._run_ranks = run
        self._turns = 0
        self._gone: NodeGone | StoreLost | None = None

    @property
    def machines(self) -> tuple[MachineIdentity | None, ...]:
        """The machines of all nodes, by node."""
        return self.agent.verdict.machines

    def begins(self, place: Session) -> None:
        self.place = place

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
        turn, self._turns = self._turns, self._turns + 1
        store = self.agent.store
        place, self.place = self.place, None
        told = Turn(config=config, place=place, work=self.work)
        store.put(keyed("turn", turn), told.model_dump_json())
        ready, lost = self._gathered(lambda node: self._ready(turn, node), config)
        for node, one in ready.items():
            if one.refusal is not None:
                raise one.refusal.error(f"{self.agent.called(node)}: ")
        of_nodes = {node: one.marks for node, one in ready.items()}
        views: dict[int, NodeView] = {}
        if not lost:
            store.put(keyed("go", turn), told.model_dump_json())
            try:
                views, lost = self._views(turn, told, watch, trace)
            except Interrupt as interrupt:
                interrupt.reports = self._with_circumstances(config, interrupt.reports, of_nodes)
                raise
        overdue = next((view.overdue for _, view in sorted(views.items()) if view.overdue is not None), None)
        where = partial(where_of, config=config)
        reports = reports_of(all_ranks(config, views), overdue, lost, where, in_general(config))
        return self._with_circumstances(config, reports, of_nodes)

    def _ready(self, turn: int, node: int) -> Ready:
        return self.agent.await_message(keyed("ready", turn, node), Ready, (node,), READY_S, node)

    def _view(self, turn: int, node: int, deadline: float) -> NodeView:
        limit_s = max(1.0, deadline - time.monotonic())
        found = self.agent.await_message(keyed("view", turn, node), NodeView, (node,), limit_s, node)
        self.agent.store.drop(keyed("view", turn, node))
        return found

    def _views(self, turn: int, told: Turn, watch: Watch, trace: Path | None) -> tuple[dict[int, NodeView], list[Lost]]:
        """Return what each node saw of its ranks, by node, and the nodes that are gone. Raises Interrupt if a signal
        ended a node, with the reports of all ranks if all of them had timed their steps.
        """
        mine: NodeView | None = None
        try:
            with held_back() as interrupted:
                mine, gone = run_turn(
                    self.agent, turn, told, watch, interrupted, self.timeout_s, trace, self._run_ranks
                )
            if isinstance(gone, Interrupt):
                raise gone
        except Interrupt as interrupt:
            interrupt.reports = self._measured(turn, told.config, mine)
            raise
        if gone is not None:
            return {0: left_behind(mine)}, [self._lost(gone, told.config)]
        if mine is None:
            return {}, []
        deadline = time.monotonic() + VIEW_S
        views, lost = self._gathered(lambda node: self._view(turn, node, deadline), told.config)
        return {0: mine, **views}, lost

    def _measured(self, turn: int, config: RunConfig, mine: NodeView | None) -> list[RankReport]:
        """Return the reports of all ranks if each had timed its steps before a signal came, else none. Other nodes have
        a moment to tell of theirs, which may have been interrupted too, or have lost the ranks of this node.
        """
        if mine is None:
            return []
        views, deadline = {0: mine}, time.monotonic() + PARTING_S
        for node in self.agent.others:
            with suppress(NodeGone, StoreLost, Interrupt):
                views[node] = self._view(turn, node, deadline)
        seen = all_ranks(config, views)
        found = [view.report or (view.kept if view.measured else None) for view in seen]
        return [report for report in found if report is not None] if None not in found else []

    def _gathered(self, ask: Callable[[int], Answer], config: RunConfig) -> tuple[dict[int, Answer], list[Lost]]:
        """Return the answers of the other nodes, and the nodes that are gone."""
        answers, lost = {}, []
        for node in self.agent.others:
            try:
                answers[node] = ask(node)
            except (NodeGone, StoreLost) as gone:
                lost.append(self._lost(gone, config))
        return answers, lost

    def _lost(self, gone: NodeGone | StoreLost, config: RunConfig) -> Lost:
        self._gone = self._gone or gone
        return lost_node(gone, config) if isinstance(gone, NodeGone) else lost_store(gone, config, 1)

    def _with_circumstances(
        self, config: RunConfig, reports: Sequence[RankReport], marks: dict[int, tuple[str, ...]]
    ) -> list[RankReport]:
        found = []
        for report in on_machines(reports, config, self.machines):
            node, local_rank = divmod(report.rank, config.world_size // config.nodes)
            own = marks.get(node, ()) if local_rank == 0 else ()
            general = self.agent.verdict.marks if report.rank == 0 else ()
            found.append(report.model_copy(update={"marks": (*general, *own, *report.marks)}))
        return found


def lost_node(gone: NodeGone, config: RunConfig) -> Lost:
    """Return the lost node with its ranks. Records name it by number alone: machines' names are private."""
    ranks = ranks_of(gone.node, config)
    return Lost(tuple(ranks), gone.at_s, f"{_with_ranks(gone.node, ranks)} {gone.how}", gone.stage)


def lost_store(gone: StoreLost, config: RunConfig, node: int) -> Lost:
    """Return a lost node with its ranks. node: the one that is out of reach together with the store."""
    ranks = ranks_of(node, config)
    return Lost(tuple(ranks), time.time(), f"{_with_ranks(node, ranks)} died or is out of reach: {gone.what}")


def _with_ranks(node: int, ranks: range) -> str:
    """Return e.g. `node 1 with ranks 8 to 15`, or `node 1 with rank 1`."""
    return f"node {node} with " + (f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}")


def ranks_of(node: int, config: RunConfig) -> range:
    """Return the ranks of a node; all nodes have the same number."""
    a_node = config.world_size // config.nodes
    return range(node * a_node, (node + 1) * a_node)


def where_of(ranks: Sequence[int], stage: Stage | None, config: RunConfig) -> str:
    """Return the end of a reason: on which nodes the ranks are and in which phase, each only if there are any."""
    nodes = sorted({rank // (config.world_size // config.nodes) for rank in ranks})
    *before, last = map(str, nodes) if nodes else ("",)
    on = f", on nodes {', '.join(before)} and {last}" if before else f", on node {last}" if last else ""
    return on + ("" if stage is None else f", in the phase {stage!r}")


def on_machines(
    reports: Sequence[RankReport], config: RunConfig, machines: Sequence[MachineIdentity | None]
) -> list[RankReport]:
    """Return the reports, each with its machine. machines: by node."""
    a_node = config.world_size // config.nodes
    return [report.model_copy(update={"machine": machines[report.rank // a_node]}) for report in reports]


def all_ranks(config: RunConfig, views: dict[int, NodeView]) -> list[RankView]:
    """Return the views of all ranks, by rank; empty views for ranks that no node sees."""
    seen = {view.rank: view for node in views.values() for view in node.ranks}
    return [seen.get(rank) or RankView(rank=rank) for rank in range(config.world_size)]


def run_turn(
    agent: Agent,
    turn: int,
    told: Turn,
    watch: Watch,
    interrupted: Callable[[], bool],
    timeout_s: float | None,
    trace: Path | None = None,
    run: RunRanks = run_ranks,
) -> tuple[NodeView | None, Gone | None]:
    """Run this node's ranks from their start to their end. Return what was seen of them, None if a signal ended them
    before they had timed their steps, and why they were ended early if that is because of another node.
    """
    place = agent.place
    meet = Rendezvous(address=place.address, port=place.port, prefix=f"fp8bench/{place.attempt}/group/{turn}")
    task = Task(config=told.config, work=told.work, trace=trace, node=place.node, meet=meet)
    elsewhere = Elsewhere(agent, turn)
    done = run(task, timeout_s, watch, lambda: interrupted() or elsewhere.interrupted, elsewhere)
    agent.stage = None
    return None if done is None else NodeView(ranks=done.views, overdue=done.overdue), elsewhere.gone


def left_behind(view: NodeView | None) -> NodeView:
    """Return only what is kept of ranks that were ended because another node is gone: what they had found, and their
    part of the log. How they ended says nothing about the cause.
    """
    ranks = view.ranks if view is not None else ()
    return NodeView(ranks=tuple(RankView(rank=one.rank, kept=one.kept, log=one.log) for one in ranks))


class Elsewhere:
    """The other nodes, as this node's launcher asks about them: how long its own ranks may go on after a rank elsewhere
    failed, and that they end at once if another node is gone. gone: that node, the store that it holds, or the signal
    that ended it.
    """

    def __init__(self, agent: Agent, turn: int) -> None:
        self._agent = agent
        self._turn = turn
        self._due = 0.0
        self._told = False
        self._grace_s: float | None = None
        self.gone: Gone | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended another node."""
        return isinstance(self.gone, Interrupt)

    def __call__(self, seen: Sequence[Progress | None], grace_s: float | None) -> float | None:
        # Of the rank that is furthest behind.
        self._agent.stage = min(("starting" if one is None else one.stage for one in seen), key=STAGES.index)
        if self.gone is None:
            try:
                self._exchange(grace_s)
            except (NodeGone, StoreLost, Interrupt) as gone:
                self.gone, self._grace_s = gone, 0.0
        known = [one for one in (grace_s, self._grace_s) if one is not None]
        return min(known, default=None)

    def _exchange(self, grace_s: float | None) -> None:
        if grace_s is not None and not self._told:
            self._told = True
            stop = Stop(node=self._agent.place.node, grace_s=grace_s)
            self._agent.store.put(keyed("stop", self._turn), stop.model_dump_json())
        if self._grace_s is None and (now := time.monotonic()) >= self._due:
            self._due = now + LOOK_S
            self._look()

    def _look(self) -> None:
        agent = self._agent
        agent.store.say(Status(stage=agent.stage).model_dump_json())
        stop = agent.find(keyed("stop", self._turn), Stop)
        if stop is not None:
            self._grace_s = stop.grace_s
        elif agent.store.get("end") is not None:
            self._grace_s = 0.0
        agent.require_others()
