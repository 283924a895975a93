"""A node's agent, from its first message to the other nodes to its last.

All messages go through the store. Node 0 listens for the signs of life of every node, and every node for those of node
0: a node that was silent for `SILENT_S` is gone, and if the store no longer answers, so is the node that holds it.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fp8bench.launch import signals
from fp8bench.launch.nodes.messages import End, Hello, Left, Verdict, judge, keyed, named
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import GroupStore, NodeGone, StoreLost
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.model import Refusal
from fp8bench.worker.progress import Stage

MessageT = TypeVar("MessageT")

MEET_S = 30.0
"""Seconds that a node may take to send its first message after node 0 did. torchrun starts no process before all nodes
have come, so only other launchers start nodes one after the other.
"""

SAID_S = 5.0
"""After this many seconds, whoever waits says for what."""

SILENT_S = 15.0
"""A node without a sign of life for this many seconds is gone; it gives one every second."""

PART_S = 8.0
"""Seconds that node 0 waits until all nodes have heard of the end, because the store may end with node 0."""

DYING_LOOKS = 5
DYING_POLL_S = 0.1
POLL_S = 0.2


@dataclass
class Agent:
    """The agent of this node. place: this node's. parent: torchrun's process id. verdict: set once the nodes met.
    stage: of the rank here that is furthest behind, as last seen; None if none runs.
    """

    place: Elastic
    store: GroupStore
    log: Callable[[str], None]
    parent: int = field(default_factory=os.getppid)
    verdict: Verdict = field(default_factory=Verdict)
    stage: Stage | None = None
    poll_s: float = POLL_S

    @property
    def leads(self) -> bool:
        """Whether this node decides what runs, writes and prints."""
        return self.place.node == 0

    @property
    def others(self) -> list[int]:
        """All nodes except this one."""
        return [node for node in range(self.place.nodes) if node != self.place.node]

    def called(self, node: int) -> str:
        """Return the node's name for a line on standard error: `node 1 (ip-10-0-0-12)`."""
        hosts = self.verdict.hosts
        return named(node, hosts[node]) if node < len(hosts) else f"node {node}"

    def meet(self, mine: Hello, limit_s: float | None = None) -> Verdict:
        """Exchange first messages; every node calls this once. If they cannot run together, all of them raise. limit_s:
        for the messages of all nodes; None for MEET_S.
        """
        limit_s = max(limit_s or 0.0, MEET_S)
        self.store.put(keyed("hello", self.place.node), mine)
        if self.leads:
            try:
                since = time.monotonic()
                theirs = [self._awaited(keyed("hello", n), n, Hello, limit_s, self.others, since) for n in self.others]
                met = judge([mine, *theirs])
            except NodeGone as gone:
                # For those that came.
                self.store.put("verdict", Verdict(refusal=Refusal.of(gone)))
                raise
            self.store.put("verdict", met)
        else:
            # Node 0 may have begun to wait for others only now.
            met = self._awaited("verdict", 0, Verdict, 2 * limit_s, [0], time.monotonic())
        self.verdict = met
        if met.refusal is not None:
            raise met.refusal.error()
        return met

    def refuse(self, error: Fp8benchError) -> None:
        """Say, as the first message, that this node cannot run, and log what the nodes conclude if that differs."""
        place, refusal = self.place, Refusal.of(error)
        mine = Hello(node=place.node, host=socket.gethostname(), processes=place.local_world_size, refusal=refusal)
        try:
            self.meet(mine)
        except Fp8benchError as heard:
            if heard.exit_code != error.exit_code:
                self.log(f"warning: {heard}")
        if not self.leads:
            # Node 0 need not wait for this one at its end.
            self.part()

    def await_message(self, key: str, node: int, kind: type[MessageT], limit_s: float) -> MessageT:
        """Wait for a message under this key. node: whose it is, and whose end ends the wait.

        Raises NodeGone, also if the message did not come in time, and Interrupt if a signal ended the node.
        """
        return self._awaited(key, node, kind, limit_s, [node], time.monotonic())

    def _awaited(
        self, key: str, node: int, kind: type[MessageT], limit_s: float, watched: list[int], since: float
    ) -> MessageT:
        began, said = time.monotonic(), False
        while (found := self.store.get(key, kind)) is None:
            for one in watched:
                self.require_alive(one)
            now = time.monotonic()
            if now - since > limit_s:
                raise NodeGone(node, self.called(node), f"said nothing for {limit_s:.0f} s", time.time() - limit_s)
            if now - began > SAID_S and not said:
                said = True
                self.log(f"waiting for {self.called(node)}, {limit_s:.0f} s at most")
            time.sleep(self.poll_s)
        return found

    def require_others(self) -> None:
        """Require the nodes that this one depends on: node 0 all others, and each other node 0. Raises as
        `require_alive` does.
        """
        for node in self.others if self.leads else (0,):
            self.require_alive(node)

    def require_alive(self, node: int) -> None:
        """Raise NodeGone if the node has left or is silent, and Interrupt if a signal ended it."""
        left = self.store.get(keyed("left", node), Left)
        silent_s, stage = self.store.heard(node)
        if left is not None and left.interrupted is not None:
            self.log(f"{self.called(node)} {left.what}")
            raise signals.Interrupt(left.interrupted)
        if left is not None:
            # What it said last is newer than its latest sign of life.
            raise NodeGone(node, self.called(node), left.what, left.at_s, left.stage or stage)
        if silent_s > SILENT_S:
            how = f"gave no sign of life for {silent_s:.0f} s"
            raise NodeGone(node, self.called(node), how, time.time() - silent_s, stage)

    def orphaned(self) -> bool:
        """Return whether torchrun is gone. This process learns of that by SIGTERM, a little before the kernel is done
        with ending a process of many threads.
        """
        for _ in range(DYING_LOOKS):
            torchrun = signals.process(self.parent)
            if os.getppid() != self.parent or torchrun is None or torchrun.state == signals.ZOMBIE:
                return True
            time.sleep(DYING_POLL_S)
        return False

    def leave(self, error: BaseException) -> None:
        """Tell the other nodes that this node ends early, and why."""
        number: int | None = None
        what = f"was ended by an error{f': {error.what}' if isinstance(error, Fp8benchError) else ''}"
        if isinstance(error, KeyboardInterrupt):
            number = error.number if isinstance(error, signals.Interrupt) else signal.SIGINT
            what = f"was ended by {signal.Signals(number).name}"
        if self.orphaned():
            what, number = "lost its torchrun, which was killed", None
        try:
            left = Left(what=what, at_s=time.time(), interrupted=number, stage=self.stage)
            self.store.put(keyed("left", self.place.node), left)
        except StoreLost as lost:
            self.log(f"warning: the other nodes could not be told: {lost.what}")

    def end(self, code: int, why: str) -> None:
        """Tell all nodes, as node 0, that the session is over, and wait a moment until they have heard it."""
        try:
            self.store.put("end", End(code=code, why=why))
            deadline = time.monotonic() + PART_S
            while not all(map(self._parted, self.others)) and time.monotonic() < deadline:
                time.sleep(self.poll_s)
        except StoreLost as lost:
            self.log(f"warning: the other nodes could not be told: {lost.what}")

    def ended(self) -> End | None:
        """Return the end of the session, if node 0 has told it."""
        return self.store.get("end", End)

    def _parted(self, node: int) -> bool:
        # Without a verdict, a node without a first message has not come.
        unmet = not self.verdict.hosts and self.store.get(keyed("hello", node), Hello) is None
        said_so = (self.store.get(keyed("bye", node), bool), self.store.get(keyed("left", node), Left))
        return unmet or any(said_so) or self.store.heard(node)[0] > SILENT_S

    def part(self, end: End | None = None) -> int:
        """Tell node 0 that its end was heard, and say why it ended. Returns the exit code."""
        # Node 0 may not have waited for this message.
        with suppress(StoreLost):
            self.store.put(keyed("bye", self.place.node), True)
        if end is not None and end.why:
            self.log(f"{self.called(0)}: {end.why}")
        return 0 if end is None else end.code
