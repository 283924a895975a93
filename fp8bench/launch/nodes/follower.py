"""Every node except node 0: it runs what node 0 tells it, writes nothing, and leaves with the exit code that it is
told; and one job on all nodes, for a kind that is not `run`.

If node 0 is gone, no other node would keep the record of the run that failed, so node 1 does.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fp8bench.launch.nodes.agent import Agent
from fp8bench.launch.nodes.leader import LOOK_S, RunRanks, left_behind, on_machines, reports_on_nodes, run_turn
from fp8bench.launch.nodes.messages import End, Ready, Refusal, Turn, keyed
from fp8bench.launch.nodes.store import NodeGone
from fp8bench.launch.processes import group
from fp8bench.launch.processes.group import ConnectionLost, Job
from fp8bench.launch.processes.rank import Rendezvous
from fp8bench.launch.processes.watch import run_ranks
from fp8bench.launch.signals import held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.rank import RankReport

HEAR_S = 10.0
"""How long a node whose ranks lost their connection waits to hear why."""

RESULTS_S = 60.0
"""How much later than node 0's ranks those of another node may end."""

MessageT = TypeVar("MessageT")

RunJob = Callable[[Job, Callable[[], object]], list[str]]
"""`group.run`; tests replace it."""

Marks = Callable[[RunConfig], Sequence[str]]
"""Returns the marks of a node's circumstances before a run; raises ModeUnavailable if the node should not run."""

Keep = Callable[[Turn, Sequence[RankReport]], object]
"""Keeps the record of a run whose leader is gone."""


class Ended(Exception):
    """Node 0 has ended the call."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


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
        try:
            while True:
                self._take(turn, self._next(keyed("turn", turn), Turn))
                turn += 1
        except Ended as ended:
            return self.agent.part(ended.end)

    def _next(self, key: str, kind: type[MessageT]) -> MessageT:
        """Return what is stored under the key once it is there. Raises Ended."""
        agent = self.agent
        while (found := agent.store.get(key, kind)) is None:
            if (end := agent.ended()) is not None:
                raise Ended(end)
            agent.require_alive(0)
            time.sleep(agent.poll_s)
        return found

    def _take(self, turn: int, told: Turn) -> None:
        agent, told_all = self.agent, False
        try:
            ready = Ready(marks=tuple(self.marks(told.config)))
        except ModeUnavailable as refusal:
            ready = Ready(refusal=Refusal.of(refusal))
        agent.store.put(keyed("ready", turn, agent.place.node), ready)
        self._next(keyed("go", turn), bool)
        with held_back() as interrupted:

            def noticed() -> bool:
                nonlocal told_all
                if interrupted() and not told_all:
                    told_all = True
                    if agent.orphaned():
                        # Tell this before its ranks end, which makes those on other nodes fail.
                        agent.leave(KeyboardInterrupt())
                return interrupted()

            seen, gone = run_turn(
                agent, turn, told, lambda _progress: None, noticed, self.timeout_s, run=self.run_ranks
            )
            if isinstance(gone, NodeGone):
                if agent.place.node == 1 and told.place is not None:
                    reports = reports_on_nodes(told.config, {1: left_behind(seen)}, [gone])
                    self.keep(told, on_machines(reports, told.config, agent.verdict.machines))
                raise gone
            if seen is not None:
                agent.store.put(keyed("view", turn, agent.place.node), seen)
            if gone is not None:
                raise gone


def lead_job(agent: Agent, job: Job, run: RunJob = group.run) -> list[str]:
    """Run node 0's ranks of one job on all nodes: each node starts its own ranks. The first failure anywhere ends them
    all; a rank whose connection broke is not to blame for it, and its node waits a moment to hear what ended elsewhere.
    Returns the results of the ranks of all nodes, by rank. job: of all ranks.

    Raises RunFailed if a rank failed, NodeGone if another node did, and Interrupt if a signal ended one.
    """
    found = _ranks_here(agent, job, run)
    for node in agent.others:
        found += agent.await_message(keyed("results", node), node, list[str], RESULTS_S)
    return found


def follow_job(agent: Agent, job: Job, run: RunJob = group.run) -> int:
    """Run this node's ranks, send their results to node 0, and wait for it. Returns the exit code."""
    try:
        agent.store.put(keyed("results", agent.place.node), _ranks_here(agent, job, run))
        while True:
            _look(agent)
            time.sleep(agent.poll_s)
    except Ended as ended:
        return agent.part(ended.end)


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
        deadline = time.monotonic() + HEAR_S
        while time.monotonic() < deadline:
            _look(agent)
            time.sleep(agent.poll_s)
        raise


def _look(agent: Agent) -> None:
    """Raises Ended if node 0 has ended the call, NodeGone if a node is gone that this one depends on, and Interrupt if
    a signal ended that node.
    """
    if not agent.leads and (end := agent.ended()) is not None:
        raise Ended(end)
    agent.require_others()
