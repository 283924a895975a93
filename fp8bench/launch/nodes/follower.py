"""Every node except node 0: it runs what node 0 tells it, writes nothing, and leaves with the exit code that it is
told.

If node 0 is gone, no other node would keep the record of the run that failed, so node 1 does.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fp8bench.launch.nodes.agent import Agent
from fp8bench.launch.nodes.leader import RunRanks, left_behind, on_machines, reports_on_nodes, run_turn
from fp8bench.launch.nodes.messages import Ready, Turn, keyed
from fp8bench.launch.nodes.store import NodeGone
from fp8bench.launch.processes.server import Server
from fp8bench.launch.processes.watch import run_ranks
from fp8bench.launch.signals import held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.model import Refusal
from fp8bench.schema.rank import RankReport

MessageT = TypeVar("MessageT")

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
    run_ranks: RunRanks | None = None

    def obey(self) -> int:
        """Run what node 0 says until it ends the session, and return the exit code. Raises RunFailed if node 0 is gone,
        after the record is kept.
        """
        turn, server = 0, Server()
        run = self.run_ranks or partial(run_ranks, server=server)
        with closing(server):
            while (told := self._next(keyed("turn", turn), Turn)) is not None and self._take(turn, told, run):
                turn += 1
        return self.agent.part(self.agent.ended())

    def _next(self, key: str, kind: type[MessageT]) -> MessageT | None:
        """Return what is stored under the key once it is there, or None if node 0 has ended the session."""
        agent = self.agent
        while (found := agent.store.get(key, kind)) is None and agent.ended() is None:
            agent.require_alive(0)
            time.sleep(agent.poll_s)
        return found

    def _take(self, turn: int, told: Turn, run: RunRanks) -> bool:
        """Run this node's ranks, and return whether the session goes on."""
        agent, told_all = self.agent, False
        try:
            ready = Ready(marks=tuple(self.marks(told.config)))
        except ModeUnavailable as refusal:
            ready = Ready(refusal=Refusal.of(refusal))
        agent.store.put(keyed("ready", turn, agent.place.node), ready)
        if self._next(keyed("go", turn), bool) is None:
            return False
        with held_back() as interrupted:

            def noticed() -> bool:
                nonlocal told_all
                if interrupted() and not told_all:
                    told_all = True
                    if agent.orphaned():
                        # Tell this before its ranks end, which makes those on other nodes fail.
                        agent.leave(KeyboardInterrupt())
                return interrupted()

            seen, gone = run_turn(agent, turn, told, lambda _progress: None, noticed, self.timeout_s, run)
            if isinstance(gone, NodeGone):
                if agent.place.node == 1 and told.place is not None:
                    reports = reports_on_nodes(told.config, {1: left_behind(seen)}, [gone])
                    self.keep(told, on_machines(reports, told.config, agent.verdict.machines))
                raise gone
            if seen is not None:
                agent.store.put(keyed("view", turn, agent.place.node), seen)
            if gone is not None:
                raise gone
        return True
