"""A node's agent, from its first message to the other nodes to its last.

Node 0 depends on every other node, and each of them on node 0: a node that was silent for `SILENT_S` is gone, and if
the store no longer answers, so is the node that holds it.
"""

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fp8bench.launch import signals
from fp8bench.launch.nodes.messages import Hello, Left, judge, named
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import GroupStore, StoreLost
from fp8bench.launch.processes.blame import NodeGone
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.model import Refusal

MessageT = TypeVar("MessageT")

MEET_S = 30.0  # for a node's first message after node 0's; torchrun starts no process before all nodes have come
SILENT_S = 15.0  # a node without a sign of life for so long is gone; it gives one every second
PART_S = 8.0  # for all nodes to hear of the end, because the store may end with node 0
POLL_S = 0.2


@dataclass
class Agent:
    """parent: torchrun's process id. hellos, marks: of all nodes that have met. met: whether this one has begun to."""

    place: Elastic
    store: GroupStore
    log: Callable[[str], None]
    parent: int = field(default_factory=os.getppid)
    hellos: Sequence[Hello] = ()
    marks: tuple[str, ...] = ()
    met: bool = False

    @property
    def leads(self) -> bool:
        return self.place.node == 0

    def called(self, node: int) -> str:
        """Return the node's name for a line on standard error: `node 1 (ip-10-0-0-12)`."""
        return named(node, self.hellos[node].host) if self.hellos else f"node {node}"

    @property
    def machines(self) -> tuple[MachineIdentity | None, ...]:
        return tuple(one.machine for one in self.hellos)

    def say(self, what: str, message: object) -> None:
        """Send this node's message of that name. Raises StoreLost."""
        self.store.put(f"{what}/{self.place.node}", message)

    def hear(
        self,
        what: str,
        kind: type[MessageT],
        limit_s: float = math.inf,
        lost: list[NodeGone] | None = None,
        nodes: Sequence[int] = (),
    ) -> dict[int, MessageT]:
        """Wait for the message of that name from these nodes, or those that this one depends on; return them by node.

        limit_s: without a limit the end of the session ends the wait too. lost: takes the nodes that are gone or late,
        for which NodeGone is raised without it. Raises Interrupt for a signal.
        """
        heard: dict[int, MessageT] = {}
        missing, began, said = list(nodes or self.place.peers), time.monotonic(), limit_s == math.inf
        while missing and (limit_s < math.inf or self.ended() is None):
            waited_s = time.monotonic() - began
            if waited_s > 5.0 and not said:
                said = True
                self.log(f"waiting for {' and '.join(map(self.called, missing))}, {limit_s:.0f} s at most")
            for node in tuple(missing):
                try:
                    found = self.store.get(f"{what}/{node}", kind)
                    if found is None:
                        if node in self.place.peers:
                            self.require_alive(node)
                        if waited_s > limit_s:
                            how = f"said nothing for {limit_s:.0f} s"
                            raise NodeGone(node, self.called(node), how, time.time() - limit_s)
                        continue
                    heard[node] = found
                except NodeGone as gone:
                    if lost is None:
                        raise
                    lost.append(gone)
                missing.remove(node)
            if missing:
                time.sleep(POLL_S)
        return heard

    def require_alive(self, node: int) -> None:
        """Raise NodeGone if the node has left early or is silent, and Interrupt if a signal ended it."""
        left, heard = self.store.get(f"left/{node}", Left), self.store.heard[node]
        if left is not None and left.interrupted is not None:
            self.log(f"{self.called(node)} {left.what}")
            raise signals.Interrupt(left.interrupted)
        if left is not None and left.code is None:
            # What it said last is newer than its latest sign of life.
            raise NodeGone(node, self.called(node), left.what, left.at_s, left.stage or heard.stage)
        if heard.silent_s > SILENT_S:
            how = f"gave no sign of life for {heard.silent_s:.0f} s"
            raise NodeGone(node, self.called(node), how, time.time() - heard.silent_s, heard.stage)

    def meet(self, mine: Hello, limit_s: float | None = None) -> None:
        """Exchange first messages; every node calls this once. If they cannot run together, all of them raise."""
        self.met = True
        self.say("hello", mine)
        heard = self.hear("hello", Hello, max(limit_s or 0.0, MEET_S), nodes=range(self.place.nodes))
        self.hellos = [heard[node] for node in sorted(heard)]
        self.marks = judge(self.hellos)

    def refuse(self, error: Fp8benchError) -> None:
        """Say, as the first message, that this node cannot run."""
        with suppress(Fp8benchError):
            self.meet(Hello(node=self.place.node, host=socket.gethostname(), refusal=Refusal.of(error)))
        if not self.leads:
            # Node 0 need not wait for this one at its end.
            self.part()

    def orphaned(self) -> bool:
        """Return whether torchrun is gone, which this process learns by SIGTERM, a little before the kernel is done."""

        def gone() -> bool:
            torchrun = signals.process(self.parent)
            return os.getppid() != self.parent or torchrun is None or torchrun.state == signals.ZOMBIE

        return signals.waited_for(gone, 0.5)

    def leave(self, error: BaseException) -> None:
        """Tell the other nodes that this node ends early, and why."""
        number: int | None = None
        what = f"was ended by an error{f': {error.what}' if isinstance(error, Fp8benchError) else ''}"
        if isinstance(error, KeyboardInterrupt):
            number = error.number if isinstance(error, signals.Interrupt) else signal.SIGINT
            what = f"was ended by {signal.Signals(number).name}"
        if self.orphaned():
            what, number = "lost its torchrun, which was killed", None
        self.end(None, what, number)

    def end(self, code: int | None, why: str, interrupted: int | None = None) -> None:
        """Tell the other nodes that this one ends; of node 0, that is the end of the session, and it waits a moment
        until all have heard it.
        """

        def parted(node: int) -> bool:
            # If the nodes have not met, one without a first message has not come.
            unmet = not self.hellos and self.store.get(f"hello/{node}", Hello) is None
            silent = self.store.heard[node].silent_s > SILENT_S
            return unmet or silent or self.store.get(f"left/{node}", Left) is not None

        try:
            self.say("left", Left(what=why, code=code, interrupted=interrupted, stage=self.store.stage))
            if self.leads:
                signals.waited_for(lambda: all(map(parted, self.place.peers)), PART_S, POLL_S)
        except StoreLost as lost:
            self.log(f"warning: the other nodes could not be told: {lost.what}")

    def ended(self) -> Left | None:
        """Return the end of the session, if node 0 has told it to this node."""
        return None if self.leads else self.store.get("left/0", Left)

    def part(self, end: Left | None = None) -> int:
        """Tell node 0 that its end was heard, and say why it ended. Returns the exit code."""
        code = end.code if end is not None and end.code is not None else 0
        # Node 0 may not have waited for this message.
        with suppress(StoreLost):
            self.say("left", Left(code=code))
        if end is not None and end.what:
            self.log(f"{self.called(0)}: {end.what}")
        return code
