"""Every node except node 0: it runs what node 0 tells it, writes nothing, and leaves with the exit code that it is
told.

If node 0 is gone, no other node would keep the record of the run that failed, so node 1 does.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from fp8bench.launch.nodes.agent import POLL_S, Agent, NodeGone
from fp8bench.launch.nodes.leader import all_ranks, lost_node, lost_store, on_machines, where_of
from fp8bench.launch.nodes.messages import (
    END,
    End,
    NodeView,
    Ready,
    Refusal,
    Turn,
    bye_of,
    go_of,
    ready_of,
    turn_of,
    view_of,
)
from fp8bench.launch.nodes.store import StoreLost
from fp8bench.launch.nodes.turn import RunRanks, left_behind, run_turn
from fp8bench.launch.processes.blame import in_general
from fp8bench.launch.processes.watch import reports_of, run_ranks
from fp8bench.launch.signals import held_back
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import Progress

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
            told = self._next(turn_of(turn))
            if isinstance(told, End):
                return part(self.agent, told)
            self._take(turn, told)
            turn += 1

    def _next(self, key: str) -> "Turn | End":
        """Return what is stored under the key once it is there, or the end."""
        agent = self.agent
        while True:
            for found in (agent.find(key, Turn), agent.find(END, End)):
                if found is not None:
                    return found
            agent.require_alive(0)
            agent.sleep(POLL_S)

    def _take(self, turn: int, told: Turn) -> None:
        agent, told_all = self.agent, False
        ready = self._ready(told.config)
        agent.store.put(ready_of(turn, agent.place.node), ready.model_dump_json())
        if isinstance(self._next(go_of(turn)), End):
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
                agent.store.put(view_of(turn, agent.place.node), view.model_dump_json())
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
        agent.store.put(bye_of(agent.place.node), "{}")
    if end.why:
        agent.log(f"{agent.called(0)}: {end.why}")
    return end.code


def _nobody(_progress: Progress) -> None:
    """Show nothing: node 0 shows the progress."""
