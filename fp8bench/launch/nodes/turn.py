"""One run on one node: its ranks, watched together with those on the other nodes."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fp8bench.launch.nodes.agent import Agent, NodeGone
from fp8bench.launch.nodes.messages import END, NodeView, Status, Stop, Turn, stop_of
from fp8bench.launch.nodes.store import StoreLost
from fp8bench.launch.processes import Watch
from fp8bench.launch.processes.rank import Rendezvous, Task
from fp8bench.launch.processes.watch import Others, Outcome, RankView, run_ranks
from fp8bench.launch.signals import Interrupt
from fp8bench.worker.progress import STAGES, Progress, Stage

LOOK_S = 0.5
"""Seconds between two looks at the store while ranks run."""

Gone = NodeGone | StoreLost | Interrupt
"""What ends a run because of another node: the node, or the store that it holds, is gone, or a signal ended it."""

RunRanks = Callable[[Task, float | None, Watch, Callable[[], bool], Others], Outcome | None]
"""A function with the signature of `spawn.run_ranks`; tests pass another."""


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
        self._agent.stage = last_stage(seen)
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
            self._agent.store.put(stop_of(self._turn), stop.model_dump_json())
        if self._grace_s is None and (now := time.monotonic()) >= self._due:
            self._due = now + LOOK_S
            self._look()

    def _look(self) -> None:
        agent = self._agent
        agent.store.say(Status(stage=agent.stage).model_dump_json())
        stop = agent.find(stop_of(self._turn), Stop)
        if stop is not None:
            self._grace_s = stop.grace_s
        elif agent.store.get(END) is not None:
            self._grace_s = 0.0
        agent.require_others()


def last_stage(seen: Sequence[Progress | None]) -> Stage:
    """Return the phase of the rank that is furthest behind."""
    return min(("starting" if one is None else one.stage for one in seen), key=STAGES.index)
