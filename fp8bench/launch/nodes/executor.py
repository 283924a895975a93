"""Runs on several nodes. A run is a turn: node 0 tells what runs, each other node says whether it can begin, and once
node 0 has said that all can, each node starts and watches its own ranks as a run on one machine does.

A rank that fails anywhere ends its run on all nodes; what they saw makes one record, and the session continues. A node
that is gone ends the session: its ranks count as the ones that failed, and nothing can run without it. If it is node 0,
no other node would keep the record of that run, so node 1 does.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from fp8bench.launch.nodes.agent import Agent, Ready
from fp8bench.launch.processes.blame import NodeGone, RankView, reports_of
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor, Outcome, Watch, run_ranks
from fp8bench.launch.signals import Interrupt, held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.model import Refusal
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import STAGES, Progress

READY_S = 60.0  # for a node to check its GPUs
VIEW_S = 40.0  # for another node's ranks to end after this node's: they part in order, or have a grace of 30 s
PARTING_S = 10.0  # for other nodes to tell what they measured once a signal ended one; torchrun kills after 30 s


class NodesExecutor(Executor):
    """Runs each task on all nodes: as `run` on node 0, and as `follow` on the others."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._turns = 0
        self._gone: NodeGone | None = None

    def require_ready(self) -> None:
        """Raise the error that ended a node, if any: nothing more can run then."""
        if self._gone is not None:
            raise self._gone

    def run(self, task: Task, watch: Watch = lambda _progress: None) -> list[RankReport]:
        """Run as `Executor.run` does; reports name their machines. Raises ModeUnavailable if a node cannot run."""
        self.require_ready()
        agent, turn, view = self.agent, self._turns, f"view/{self._turns}"
        self._turns += 1
        agent.say(f"turn/{turn}", task)
        seen, lost = dict[int, Outcome](), list[NodeGone]()
        ready = agent.hear(f"ready/{turn}", Ready, READY_S, lost)
        for node, one in ready.items():
            if one.refusal is not None:
                raise one.refusal.error(f"{agent.called(node)}: ")
        marks = {0: agent.marks, **{node: one.marks for node, one in ready.items()}}
        try:
            if not lost:
                agent.say(f"go/{turn}", True)
                with held_back() as interrupted:
                    mine, gone = self._run_here(turn, task, watch, interrupted)
                    seen = {} if mine is None else {0: mine}
                if isinstance(gone, Interrupt):
                    raise gone
                lost += [] if gone is None else [gone]
                seen |= {} if lost else agent.hear(view, Outcome, VIEW_S, lost)
        except Interrupt as interrupt:
            with suppress(Interrupt):
                seen |= agent.hear(view, Outcome, PARTING_S, []) if seen else {}
            measured = [view.report or (view.kept if view.measured else None) for view in all_ranks(task.config, seen)]
            reports = [report for report in measured if report is not None]
            # Only if every rank had timed its steps before the signal came.
            interrupt.reports = self._placed(reports if len(reports) == len(measured) else [], marks)
            raise
        self._gone = lost[0] if lost else None
        return self._placed(reports_on_nodes(task.config, seen, lost), marks)

    def _run_here(
        self, turn: int, task: Task, watch: Watch, interrupted: Callable[[], bool]
    ) -> tuple[Outcome | None, NodeGone | Interrupt | None]:
        """Return what became of this node's ranks (see `run_ranks`), and what elsewhere ended them early."""
        place, elsewhere = self.agent.place, Elsewhere(self.agent, turn)
        host = f"[{place.address}]" if ":" in place.address else place.address
        meet = f"store://{host}:{place.port}/fp8bench/{place.attempt}/group/{turn}"
        task = task.model_copy(update={"node": place.node, "meet": meet})

        def ending() -> bool:
            return interrupted() or isinstance(elsewhere.gone, Interrupt)

        try:
            seen = run_ranks(task, watch, ending, elsewhere, server=self.server)
        finally:
            self.agent.store.stage = None
        if isinstance(elsewhere.gone, NodeGone):
            # How the ranks ended says nothing about the cause.
            left = seen.views if seen is not None else ()
            seen = Outcome(tuple(RankView(rank=one.rank, kept=one.kept, log=one.log) for one in left))
        return seen, elsewhere.gone

    def follow(
        self,
        marks: Callable[[RunConfig], Sequence[str]],
        keep: Callable[[Task, Sequence[RankReport]], object] = lambda _task, _reports: None,
    ) -> int:
        """Run what node 0 says until it ends the session, and return the exit code. marks: of this node before a run.
        keep: keeps the record of a run whose leader is gone. Raises RunFailed if node 0 is gone.
        """
        agent = self.agent
        with self:
            while told := agent.hear(f"turn/{self._turns}", Task):
                try:
                    ready = Ready(marks=tuple(marks(told[0].config)))
                except ModeUnavailable as refusal:
                    ready = Ready(refusal=Refusal.of(refusal))
                agent.say(f"ready/{self._turns}", ready)
                if not agent.hear(f"go/{self._turns}", bool):
                    break
                self._obey(self._turns, told[0], keep)
                self._turns += 1
        return agent.part(agent.ended())

    def _obey(self, turn: int, task: Task, keep: Callable[[Task, Sequence[RankReport]], object]) -> None:
        agent, warned = self.agent, False
        with held_back() as interrupted:

            def noticed() -> bool:
                nonlocal warned
                if interrupted() and not warned:
                    warned = True
                    if agent.orphaned():
                        # Tell this before its ranks end, which makes those on other nodes fail.
                        agent.leave(KeyboardInterrupt())
                return interrupted()

            seen, gone = self._run_here(turn, task, lambda _progress: None, noticed)
            if isinstance(gone, NodeGone):
                if seen is not None and agent.place.node == 1 and task.place is not None:
                    keep(task, self._placed(reports_on_nodes(task.config, {1: seen}, [gone]), {}))
            elif seen is not None:
                agent.say(f"view/{turn}", seen)
            if gone is not None:
                raise gone

    def _placed(self, reports: Sequence[RankReport], marks: Mapping[int, Sequence[str]]) -> list[RankReport]:
        """Return the reports, each with its machine, and that of a node's first rank with the node's marks, by node."""
        found = []
        for report in reports:
            node, place = divmod(report.rank, self.agent.place.local_world_size)
            own, machine = () if place else marks.get(node, ()), self.agent.machines[node]
            found.append(report.model_copy(update={"machine": machine, "marks": (*own, *report.marks)}))
        return found


class Elsewhere:
    """What other nodes leave this node's ranks (see `watch.Others`). gone: a node, or the signal that ended one."""

    def __init__(self, agent: Agent, turn: int) -> None:
        self.gone: NodeGone | Interrupt | None = None
        self._agent = agent
        self._key = f"stop/{turn}"
        self._due = 0.0
        self._grace_s: float | None = None

    def __call__(self, seen: Sequence[Progress | None], grace_s: float | None) -> float | None:
        agent, now = self._agent, time.monotonic()
        # Of the rank that is furthest behind.
        agent.store.stage = min(("starting" if one is None else one.stage for one in seen), key=STAGES.index)
        try:
            if self._grace_s is None and grace_s is not None:
                agent.store.put(self._key, grace_s)
                self._grace_s = grace_s
            elif self._grace_s is None and now >= self._due:
                self._due = now + 0.5
                for node in agent.place.peers:
                    agent.require_alive(node)
                self._grace_s = 0.0 if agent.ended() is not None else agent.store.get(self._key, float)
        except (NodeGone, Interrupt) as gone:
            self.gone, self._grace_s = gone, 0.0
        return min((one for one in (grace_s, self._grace_s) if one is not None), default=None)


def reports_on_nodes(config: RunConfig, seen: Mapping[int, Outcome], gone: Sequence[NodeGone]) -> list[RankReport]:
    """Return one report per rank, by rank. seen: by node. gone: nodes that ended too early."""
    overdue = next((one.overdue for _, one in sorted(seen.items()) if one.overdue is not None), None)
    return reports_of(config, all_ranks(config, seen), overdue, gone)


def all_ranks(config: RunConfig, seen: Mapping[int, Outcome]) -> list[RankView]:
    """Return the views of all ranks, by rank; empty views for ranks that no node sees."""
    views = {view.rank: view for node in seen.values() for view in node.views}
    return [views.get(rank) or RankView(rank=rank) for rank in range(config.world_size)]
