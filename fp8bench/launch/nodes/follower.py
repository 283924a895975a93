"""Every node except node 0: it runs what node 0 tells it, writes nothing, and leaves with the exit code that it is
told; and one job on all nodes, for a kind that is not `run`.

If node 0 is gone, no other node would keep the record of the run that failed, so node 1 does.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from fp8bench.launch.nodes.agent import POLL_S, Agent, NodeGone
from fp8bench.launch.nodes.leader import (
    LOOK_S,
    RunRanks,
    all_ranks,
    left_behind,
    lost_node,
    lost_store,
    on_machines,
    run_turn,
    where_of,
)
from fp8bench.launch.nodes.messages import End, NodeView, Ready, Refusal, Results, Status, Turn, keyed
from fp8bench.launch.nodes.store import StoreLost
from fp8bench.launch.processes import group
from fp8bench.launch.processes.blame import in_general
from fp8bench.launch.processes.group import ConnectionLost, Job
from fp8bench.launch.processes.rank import Rendezvous
from fp8bench.launch.processes.watch import reports_of, run_ranks
from fp8bench.launch.signals import held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress

HEAR_S = 10.0
"""How long a node whose ranks lost their connection waits to hear why."""

RESULTS_S = 60.0
"""How much later than node 0's ranks those of another node may end."""

RunJob = Callable[[Job, Callable[[], object]], list[str]]
"""`group.run`; tests replace it."""


Marks = Callable[[RunConfig], Sequence[str]]
"""Returns the marks of a node's circumstances before a run; raises ModeUnavailable if the node should not run."""

Keep = Callable[[Turn, Sequence[RankReport]], object]
"""Keeps the record of a run whose leader is gone."""


@dataclass
class Follower:
    """A node that obeys node 0. timeout_s: of each phase; None for each phase's own."""

    agent: Agent
    marks: Marks
    keep: Keep
    timeout_s: float | None = None
    run_ranks: RunRanks = run_ranks

    def obey(self) -> int:
        """Run what node 0 says until it ends the session, and return the exit code. Raises RunFailed if node 0 is gone,
        after the record is kept.
        """
        turn = 0
        while True:
            told = self._next(keyed("turn", turn))
            if isinstance(told, End):
                return part(self.agent, told)
            self._take(turn, told)
            turn += 1

    def _next(self, key: str) -> "Turn | End":
        """Return what is stored under the key once it is there, or the end."""
        agent = self.agent
        while True:
            for found in (agent.find(key, Turn), agent.find("end", End)):
                if found is not None:
                    return found
            agent.require_alive(0)
            agent.sleep(POLL_S)

    def _take(self, turn: int, told: Turn) -> None:
        agent, told_all = self.agent, False
        ready = self._ready(told.config)
        agent.store.put(keyed("ready", turn, agent.place.node), ready.model_dump_json())
        if isinstance(self._next(keyed("go", turn)), End):
            return
        with held_back() as interrupted:

            def noticed() -> bool:
                nonlocal told_all
                if interrupted() and not told_all:
                    told_all = True
                    if agent.orphaned():
                        # Tell this before its ranks end, which makes those on other nodes fail.
                        agent.leave(KeyboardInterrupt())
                return interrupted()

            view, gone = run_turn(agent, turn, told, _nobody, noticed, self.timeout_s, run=self.run_ranks)
            if isinstance(gone, NodeGone | StoreLost):
                self._keep_failed(gone, told, left_behind(view))
                raise gone
            if view is not None:
                agent.store.put(keyed("view", turn, agent.place.node), view.model_dump_json())
            if gone is not None:
                raise gone

    def _ready(self, config: RunConfig) -> Ready:
        try:
            return Ready(marks=tuple(self.marks(config)))
        except ModeUnavailable as refusal:
            return Ready(refusal=Refusal.of(refusal))

    def _keep_failed(self, gone: NodeGone | StoreLost, told: Turn, mine: NodeView) -> None:
        """Keep the record of the failed run in place of node 0. mine: of this node's ranks."""
        config = told.config
        lost = lost_node(gone, config) if isinstance(gone, NodeGone) else lost_store(gone, config, 0)
        views = {self.agent.place.node: mine}
        where = partial(where_of, config=config)
        reports = reports_of(all_ranks(config, views), None, [lost], where, in_general(config))
        if self.agent.place.node == 1 and told.place is not None:
            self.keep(told, on_machines(reports, config, self.agent.verdict.machines))


def part(agent: Agent, end: End) -> int:
    """Tell node 0 that its end was heard, and say why it ended. Returns the exit code."""
    # Node 0 may not have waited for this message.
    with suppress(StoreLost):
        agent.store.put(keyed("bye", agent.place.node), "{}")
    if end.why:
        agent.log(f"{agent.called(0)}: {end.why}")
    return end.code


def _nobody(_progress: Progress) -> None:
    """Show nothing: node 0 shows the progress."""


class Ended(Exception):
    """Node 0 has ended the call."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


def lead_job(agent: Agent, job: Job, run: RunJob = group.run) -> list[str]:
    """Run node 0's ranks of one job on all nodes: each node starts its own ranks. The first failure anywhere ends them
    all; a rank whose connection broke is not to blame for it, and its node waits a moment to hear what ended elsewhere.
    Returns the results of the ranks of all nodes, by rank. job: of all ranks.

    Raises RunFailed if a rank failed, NodeGone if another node did, and Interrupt if a signal ended one.
    """
    found = _ranks_here(agent, job, run)
    for node in agent.others:
        found += agent.await_message(keyed("results", node), Results, (node,), RESULTS_S, node).texts
    return found


def follow_job(agent: Agent, job: Job, run: RunJob = group.run) -> int:
    """Run this node's ranks, send their results to node 0, and wait for it. Returns the exit code."""
    try:
        mine = Results(texts=tuple(_ranks_here(agent, job, run)))
        agent.store.put(keyed("results", agent.place.node), mine.model_dump_json())
        while True:
            _look(agent)
            agent.sleep(POLL_S)
    except Ended as ended:
        return part(agent, ended.end)


def _ranks_here(agent: Agent, job: Job, run: RunJob) -> list[str]:
    place = agent.place
    meet = Rendezvous(address=place.address, port=place.port, prefix=f"fp8bench/{place.attempt}/job")
    mine = replace(job, ranks=place.local_world_size, first=place.first_rank, meet=meet.url)
    due = 0.0

    def look() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + LOOK_S
            _look(agent)

    try:
        return run(mine, look)
    except ConnectionLost:
        deadline = agent.clock() + HEAR_S
        while agent.clock() < deadline:
            _look(agent)
            agent.sleep(POLL_S)
        raise


def _look(agent: Agent) -> None:
    """Raises Ended if node 0 has ended the call, NodeGone if a node is gone that this one depends on, and Interrupt if
    a signal ended that node.
    """
    agent.store.say(Status().model_dump_json())
    if not agent.leads and (end := agent.find("end", End)) is not None:
        raise Ended(end)
    agent.require_others()
