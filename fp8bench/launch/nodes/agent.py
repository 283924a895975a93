"""A node's agent, from its first message to the other nodes to its last.

All messages go through the store. Node 0 listens for the signs of life of every node, and every node for those of node
0: a node that was silent for `SILENT_S` is gone, and if the store no longer answers, so is the node that holds it.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fp8bench.launch import signals
from fp8bench.launch.nodes.messages import End, Hello, Left, Refusal, Status, Verdict, judge, keyed, named
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import Store, StoreLost
from fp8bench.schema.errors import Fp8benchError, RunFailed
from fp8bench.schema.files import Frozen
from fp8bench.worker.progress import Stage

Message = TypeVar("Message", bound=Frozen)
Found = TypeVar("Found")

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

DYING_S = 0.5
DYING_LOOKS = 5
POLL_S = 0.2


class NodeGone(RunFailed):
    """Raised when another node ended too early."""

    def __init__(self, node: int, called: str, how: str, at_s: float, stage: Stage | None = None) -> None:
        """called: from `Agent.called`. how: words after that name on how it ended. at_s: in seconds since 1970."""
        remedy = "See what ended it there, and start all nodes again: what is kept is not repeated"
        super().__init__(f"{called} {how}", remedy, "host-death")
        self.args = (node, called, how, at_s, stage)
        self.node = node
        self.how = how
        self.at_s = at_s
        self.stage = stage


@dataclass
class Agent:
    """The agent of this node. place: this node's. parent: torchrun's process id. verdict: set once the nodes met.
    stage: of the rank here that is furthest behind, as last seen; None if none runs.
    """

    place: Elastic
    store: Store
    log: Callable[[str], None]
    parent: int = field(default_factory=os.getppid)
    verdict: Verdict = field(default_factory=Verdict)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    stage: Stage | None = None

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
        self.store.put(keyed("hello", self.place.node), mine.model_dump_json())
        if self.leads:
            try:
                met = judge(self._hellos(limit_s))
            except NodeGone as gone:
                # For those that came.
                self.store.put("verdict", Verdict(refusal=Refusal.of(gone)).model_dump_json())
                raise
            self.store.put("verdict", met.model_dump_json())
        else:
            # Node 0 may have begun to wait for others only now.
            met = self.await_message("verdict", Verdict, (0,), 2 * limit_s)
        self.verdict = met
        if met.refusal is not None:
            raise met.refusal.error()
        return met

    def _hellos(self, limit_s: float) -> list[Hello]:
        """Return the first messages of all nodes, by node."""
        found: dict[int, Hello | None] = dict.fromkeys(range(self.place.nodes))

        def all_there() -> bool | None:
            found.update(
                {node: self.find(keyed("hello", node), Hello) for node, hello in found.items() if hello is None}
            )
            return True if all(found.values()) else None

        self._awaited(all_there, lambda: [node for node, hello in found.items() if hello is None], limit_s)
        return [hello for hello in found.values() if hello is not None]

    def refuse(self, error: Fp8benchError, host: str) -> None:
        """Say, as the first message, that this node cannot run, and log what the nodes conclude if that differs."""
        refusal = Refusal.of(error)
        mine = Hello(node=self.place.node, host=host, processes=self.place.local_world_size, refusal=refusal)
        try:
            self.meet(mine)
        except Fp8benchError as heard:
            if heard.exit_code != error.exit_code:
                self.log(f"warning: {heard}")
        if not self.leads:
            # Node 0 need not wait for this one at its end.
            with suppress(StoreLost):
                self.store.put(keyed("bye", self.place.node), "{}")

    def find(self, key: str, kind: type[Message]) -> Message | None:
        """Return the message under the key, or None if there is none."""
        text = self.store.get(key)
        return None if text is None else kind.model_validate_json(text)

    def await_message(
        self, key: str, kind: type[Message], watched: tuple[int, ...], limit_s: float, sender: int | None = None
    ) -> Message:
        """Wait for a message of another node. watched: nodes whose end ends the wait. sender: if it is not node 0.

        Raises NodeGone, also if the message did not come in time, and Interrupt if a signal ended a watched node.
        """
        return self._awaited(lambda: self.find(key, kind), lambda: [sender or 0], limit_s, watched)

    def _awaited(
        self,
        look: Callable[[], Found | None],
        missing: Callable[[], list[int]],
        limit_s: float,
        watched: tuple[int, ...] | None = None,
    ) -> Found:
        """Return what `look` finds, as soon as that is something. missing: the nodes that are waited for. watched: None
        for these. Raises as `await_message`.
        """
        began, said = self.clock(), False
        while (found := look()) is None:
            for node in missing() if watched is None else watched:
                self.require_alive(node)
            waited_s = self.clock() - began
            if waited_s > limit_s:
                raise self._gone(missing()[0], f"said nothing for {limit_s:.0f} s", time.time() - limit_s)
            if waited_s > SAID_S and not said:
                said = True
                self.log(f"waiting for {', '.join(map(self.called, missing()))}, {limit_s:.0f} s at most")
            self.sleep(POLL_S)
        return found

    def require_others(self) -> None:
        """Require the nodes that this one depends on: node 0 all others, and each other node 0. Raises as
        `require_alive` does.
        """
        for node in self.others if self.leads else (0,):
            self.require_alive(node)

    def require_alive(self, node: int) -> None:
        """Raise NodeGone if the node has left or is silent, and Interrupt if a signal ended it."""
        left = self.find(keyed("left", node), Left)
        if left is not None and left.interrupted is not None:
            self.log(f"{self.called(node)} {left.what}")
            raise signals.Interrupt(left.interrupted)
        silent_s, status = self.store.heard(node)
        stage = Status.model_validate_json(status).stage if status else None
        if left is not None:
            # What it said last is newer than its latest sign of life.
            raise self._gone(node, left.what, left.at_s, left.stage or stage)
        if silent_s > SILENT_S:
            raise self._gone(node, f"gave no sign of life for {silent_s:.0f} s", time.time() - silent_s, stage)

    def _gone(self, node: int, how: str, at_s: float, stage: Stage | None = None) -> NodeGone:
        return NodeGone(node, self.called(node), how, at_s, stage)

    def orphaned(self) -> bool:
        """Return whether torchrun is gone. This process learns of that by SIGTERM, a little before the kernel is done
        with ending a process of many threads.
        """
        for _ in range(DYING_LOOKS):
            torchrun = signals.process(self.parent)
            if os.getppid() != self.parent or torchrun is None or torchrun.state == signals.ZOMBIE:
                return True
            self.sleep(DYING_S / DYING_LOOKS)
        return False

    def leave(self, error: BaseException) -> None:
        """Tell the other nodes that this node ends early, and why."""
        why = f": {error.what}" if isinstance(error, Fp8benchError) else ""
        left = Left(what=f"was ended by an error{why}", at_s=time.time())
        if isinstance(error, KeyboardInterrupt):
            number = error.number if isinstance(error, signals.Interrupt) else signal.SIGINT
            name = signal.Signals(number).name
            left = Left(what=f"was ended by {name}", at_s=time.time(), interrupted=number)
        if self.orphaned():
            left = Left(what="lost its torchrun, which was killed", at_s=time.time())
        try:
            told = left.model_copy(update={"stage": self.stage})
            self.store.put(keyed("left", self.place.node), told.model_dump_json())
        except StoreLost as lost:
            self.log(f"warning: the other nodes could not be told: {lost.what}")

    def end(self, code: int, why: str) -> None:
        """Tell all nodes, as node 0, that the session is over, and wait a moment until they have heard it."""
        try:
            self.store.put("end", End(code=code, why=why).model_dump_json())
            deadline = self.clock() + PART_S
            while not all(map(self._parted, self.others)) and self.clock() < deadline:
                self.sleep(POLL_S)
        except StoreLost as lost:
            self.log(f"warning: the other nodes could not be told: {lost.what}")

    def _parted(self, node: int) -> bool:
        # Without a verdict, a node without a first message has not come.
        unmet = not self.verdict.hosts and self.store.get(keyed("hello", node)) is None
        gone = (
            unmet or self.store.get(keyed("bye", node)) is not None or self.store.get(keyed("left", node)) is not None
        )
        return gone or self.store.heard(node)[0] > SILENT_S
