"""A node's agent, from its first message to the other nodes to its last; what nodes tell each other, as JSON under keys
of the store; what may differ between them, and what is refused.

Node 0 depends on every other node and listens to all, and each of them depends on node 0 and listens to it: a node that
was silent for `SILENT_S` is gone, and if the store no longer answers, so is the node that holds it.

A key is the message's name, the turn if it is of one, and the node that says it (`view/3/1`). `hello`: to all, each of
which judges. `turn`: of node 0, a `Task` to run. `ready`: whether a node can begin. `go`: all can. `stop`, of nobody
alone: one of some node's ranks did not end well, and the seconds that ranks elsewhere may go on. `view`: what became of
a node's ranks, an `Outcome`. `left`: a node's last; that of node 0 ends the session.
"""

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, Field, JsonValue

from fp8bench import __version__
from fp8bench.launch import signals
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import GroupStore, StoreLost
from fp8bench.launch.processes.blame import NodeGone, numbered
from fp8bench.machine.gpus import Machine
from fp8bench.machine.host import cpu_model
from fp8bench.machine.identity import digest, software_here, this_machines_identity
from fp8bench.schema.errors import Fp8benchError, UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import MachineIdentity, variables_that_matter
from fp8bench.schema.model import Refusal
from fp8bench.worker.progress import Stage

MessageT = TypeVar("MessageT")

MEET_S = 30.0  # for a node's first message after node 0's; torchrun starts no process before all nodes have come
SILENT_S = 15.0  # a node without a sign of life for so long is gone; it gives one every second
PART_S = 8.0  # for all nodes to hear of the end, because the store may end with node 0
POLL_S = 0.2


EACH_ITS_OWN = frozenset({"results_dir", "name", "price", "allow_busy"})
"""Settings that change nothing about what ranks do."""

ALIKE = {
    "settings": "Give every node the same command, files and FP8BENCH_ variables",
    "hardware": "Use machines of one kind, as many GPUs on each (CUDA_VISIBLE_DEVICES), and as many processes, one a "
    "GPU (--nproc-per-node)",
    "software": "Install the same versions on every node, best from one image",
}
"""What must be the same on all nodes, and what to do where it is not. The first that differs is told."""


class Hello(Frozen):
    """A node's first message (see `ALIKE`). host: for standard error alone. harmless: is only marked if it differs."""

    node: int
    host: str
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    hardware: dict[str, JsonValue] = Field(default_factory=dict)
    software: dict[str, JsonValue] = Field(default_factory=dict)
    harmless: dict[str, JsonValue] = Field(default_factory=dict)
    machine: MachineIdentity | None = None
    refusal: Refusal | None = None

    @property
    def name(self) -> str:
        """For a line on standard error: `node 1 (ip-10-0-0-12)`."""
        return f"node {self.node} ({self.host})"


class Ready(Frozen):
    """Of a node. marks: what readers of records must know of it (e.g. a busy GPU). refusal: why it cannot begin."""

    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Left(Frozen):
    """A node's last message. what: ended it. code: its exit code, if it ends in order. interrupted: by this signal."""

    what: str = ""
    code: int | None = None
    interrupted: int | None = None
    at_s: float = Field(default_factory=time.time)
    stage: Stage | None = None


def hello(place: Elastic, request: BaseModel, machine: Machine, environ: Mapping[str, str]) -> Hello:
    found = software_here(machine.has_gpu)
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus))
    # Digests, because values are private to a site.
    variables: dict[str, JsonValue] = {name: digest(one) for name, one in variables_that_matter(environ).items()}
    return Hello(
        node=place.node,
        host=socket.gethostname(),
        settings=request.model_dump(mode="json", exclude=set(EACH_ITS_OWN)),
        hardware={"GPU": gpus or "none", "processes": place.local_world_size},
        software={"fp8bench": __version__, **{name: it or "absent" for name, it in found.items()}},
        harmless={"CPU": cpu_model(), "CPU cores": machine.cpu_count, **variables},
        machine=this_machines_identity(getattr(request, "name", None)),
    )


def judge(hellos: Sequence[Hello]) -> tuple[str, ...]:
    """Return marks of what differs and hardly matters; raise what keeps nodes from running. hellos: by node."""
    for one in hellos:
        if one.refusal is not None:
            raise one.refusal.error(f"{one.name}: ")
    for group, remedy in ALIKE.items():
        if unlike := _differing(hellos, group):
            what = "; ".join(f"{name} is {words}" for name, words in list(unlike.items())[:4])
            raise UsageError(f"the nodes differ: {what}", remedy)
    return tuple(f"unlike nodes: {name}" for name in _differing(hellos, "harmless"))


def _differing(hellos: Sequence[Hello], group: str) -> dict[str, str]:
    """Return what differs between nodes, by name, in words: `4 on node 0 (a), 8 on nodes 1 and 2`."""
    differing = {}
    for name in dict.fromkeys(name for one in hellos for name in getattr(one, group)):
        nodes: dict[str, list[Hello]] = {}
        for one in hellos:
            value = getattr(one, group).get(name)
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            # What was not given is left to the machine.
            nodes.setdefault("not given" if value is None or value == [] else words, []).append(one)
        where = [of[0].name if len(of) == 1 else numbered("node", [one.node for one in of]) for of in nodes.values()]
        if len(nodes) > 1:
            differing[name] = ", ".join(map("{} on {}".format, nodes, where))
    return differing


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
        return self.hellos[node].name if self.hellos else f"node {node}"

    @property
    def machines(self) -> tuple[MachineIdentity | None, ...]:
        return tuple(one.machine for one in self.hellos)

    def say(self, what: str, message: object) -> None:
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
        """Tell the other nodes that this one ends; of node 0, that ends the session, and it waits until all know."""

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
