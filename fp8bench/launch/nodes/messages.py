"""What nodes tell each other, as JSON under keys of the store; and what may differ between nodes, and what is refused.
Pure, except for what a node knows of itself.

A run is one measurement of one kind of machine: nodes with another GPU, driver, number of processes or version, or with
another request, make a measurement that nobody can read. Differences that hardly matter are marked in the record.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import Field, JsonValue

from fp8bench import __version__
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.processes.blame import Overdue
from fp8bench.launch.processes.rank import MEASURES_A_RUN, Work
from fp8bench.launch.processes.watch import RankView
from fp8bench.machine.gpus import Machine
from fp8bench.machine.host import cpu_model
from fp8bench.machine.identity import digest, software_here, this_machines_identity
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Fp8benchError, ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import MachineIdentity, variables_that_matter
from fp8bench.schema.record import Session
from fp8bench.worker.progress import Stage

Key = Literal["hello", "verdict", "turn", "ready", "go", "stop", "view", "results", "left", "end", "bye"]
"""hello: what a node is, and what was requested on it. verdict: of node 0, whether the nodes fit together. turn: what
runs next; turns are counted from 0 in each call. ready: whether a node can begin. go: all can. stop: one of a node's
ranks did not end well. view: what became of a node's ranks. results: what they found, for a kind that is not `run`.
left: a node leaves before the end. end: the session is over. bye: a node has heard of the end.
"""


def keyed(what: Key, *numbers: int) -> str:
    """Return the key of a message. numbers: the turn, the node, or both."""
    return "/".join(map(str, (what, *numbers)))


EACH_ITS_OWN = frozenset({"results_dir", "name", "price", "price_per_gpu", "allow_busy"})
"""Settings that change nothing about what ranks do."""

AT_MOST = 4
"""The number of differences in one line."""


class Refusal(Frozen):
    """An error of fp8bench's own, on its way to another node."""

    what: str
    remedy: str
    exit_code: int
    cause: Cause | None = None

    @staticmethod
    def of(error: Fp8benchError) -> "Refusal":
        """Return the error in the form in which it can be sent."""
        return Refusal(what=error.what, remedy=error.remedy, exit_code=error.exit_code, cause=error.cause)

    def error(self, where: str = "") -> Fp8benchError:
        """Return the error again. where: put before its message."""
        kinds = {kind.exit_code: kind for kind in (UsageError, ModeUnavailable)}
        error = kinds.get(self.exit_code, RunFailed)(f"{where}{self.what}", self.remedy, self.cause)
        error.exit_code = self.exit_code
        return error


class Hello(Frozen):
    """A node's first message. host: the machine's name, for lines on standard error; no record contains it. settings,
    hardware, software: what must be the same on all nodes, by name. harmless: what is only marked if it differs.
    refusal: why this node cannot run.
    """

    node: int
    host: str
    processes: int
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    hardware: dict[str, JsonValue] = Field(default_factory=dict)
    software: dict[str, JsonValue] = Field(default_factory=dict)
    harmless: dict[str, JsonValue] = Field(default_factory=dict)
    machine: MachineIdentity | None = None
    refusal: Refusal | None = None


class Verdict(Frozen):
    """The verdict on all nodes. hosts, machines: by node. marks: for readers of records. refusal: why nothing runs."""

    hosts: tuple[str, ...] = ()
    machines: tuple[MachineIdentity | None, ...] = ()
    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Turn(Frozen):
    """What runs next. place: of its record in the session; None if it is not kept (the try of a batch size). work: what
    each rank does.
    """

    config: RunConfig
    place: Session | None = None
    work: Work = MEASURES_A_RUN


class Ready(Frozen):
    """Whether a node can begin. marks: what it found of its circumstances (e.g. a busy GPU)."""

    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Stop(Frozen):
    """That ranks of a node did not end well. grace_s: seconds that ranks on other nodes may go on."""

    node: int
    grace_s: float


class NodeView(Frozen):
    """What an agent saw of its ranks, by rank. overdue: the ranks that were late."""

    ranks: tuple[RankView, ...]
    overdue: Overdue | None = None


class Results(Frozen):
    """What each rank of a node found, by rank."""

    texts: tuple[str, ...]


class Left(Frozen):
    """That a node left early. what: the event, in words. interrupted: the signal that ended it. at_s: since 1970.
    stage: of its rank that was furthest behind; None if none ran.
    """

    what: str
    at_s: float
    interrupted: int | None = None
    stage: Stage | None = None


class End(Frozen):
    """The end. code: the exit code of all nodes. why: the reason for the nodes that follow; may be empty."""

    code: int
    why: str = ""


class Status(Frozen):
    """What a node says with its signs of life: the phase of the rank that is furthest behind."""

    stage: Stage | None = None


class Asked(Protocol):
    """The options of a command. name: the machine's label, as the user gave it."""

    @property
    def name(self) -> str | None: ...

    def model_dump(self, *, mode: str, exclude: set[str]) -> dict[str, Any]: ...


def hello(place: Elastic, request: Asked, machine: Machine, environ: Mapping[str, str]) -> Hello:
    """Return this node's first message: what the node is, and what was requested on it."""
    asked = request.model_dump(mode="json", exclude=set(EACH_ITS_OWN))
    found = software_here(machine.has_gpu)
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus))
    # Digests, because values are private to a site.
    variables: dict[str, JsonValue] = {name: digest(one) for name, one in variables_that_matter(environ).items()}
    return Hello(
        node=place.node,
        host=socket.gethostname(),
        processes=place.local_world_size,
        settings=asked,
        hardware={"GPU": gpus or "none"},
        software={"fp8bench": __version__, **{name: it or "absent" for name, it in found.items()}},
        harmless={"CPU": cpu_model(), "CPU cores": machine.cpu_count, **variables},
        machine=this_machines_identity(request.name),
    )


def judge(hellos: Sequence[Hello]) -> Verdict:
    """Return the verdict on all nodes. hellos: ordered by node."""
    refusal = _unlike(hellos)
    for one in reversed(hellos):
        if one.refusal is not None:
            what = f"{named(one.node, one.host)}: {one.refusal.what}"
            refusal = one.refusal.model_copy(update={"what": what})
    marks = [f"unlike nodes: {name}" for name in differing(hellos, lambda one: one.harmless)]
    return Verdict(
        hosts=tuple(one.host for one in hellos),
        machines=tuple(one.machine for one in hellos),
        marks=tuple(marks),
        refusal=refusal,
    )


def named(node: int, host: str) -> str:
    """Return the node's name for a line on standard error: `node 1 (ip-10-0-0-12)`."""
    return f"node {node} ({host})"


def _unlike(hellos: Sequence[Hello]) -> Refusal | None:
    processes = _by_value({one.node: one.processes for one in hellos})
    if len(processes) > 1:
        return Refusal.of(
            UsageError(
                f"the nodes have unequal numbers of processes: {_listed(processes, hellos)}",
                "Start as many on each, one a GPU (--nproc-per-node)",
            )
        )
    for part, remedy in (
        (lambda one: one.settings, "Give every node the same command, files and FP8BENCH_ variables"),
        (lambda one: one.hardware, "Use machines of one kind, and show as many GPUs on each (CUDA_VISIBLE_DEVICES)"),
        (lambda one: one.software, "Install the same versions on every node, best from one image"),
    ):
        unlike = differing(hellos, part)
        if unlike:
            what = "; ".join(f"{name} is {_listed(values, hellos)}" for name, values in list(unlike.items())[:AT_MOST])
            return Refusal.of(UsageError(f"the nodes differ: {what}", remedy))
    return None


def differing(
    hellos: Sequence[Hello], part: Callable[[Hello], Mapping[str, JsonValue]]
) -> dict[str, dict[str, list[int]]]:
    """Return what differs between nodes, by name: which nodes have which value, in words."""
    names = dict.fromkeys(name for one in hellos for name in part(one))
    found = {name: _by_value({one.node: part(one).get(name) for one in hellos}) for name in names}
    return {name: values for name, values in found.items() if len(values) > 1}


def _by_value(of_nodes: Mapping[int, JsonValue]) -> dict[str, list[int]]:
    """Return the nodes by their value in words: a setting that was not given is left to the machine."""
    found: dict[str, list[int]] = {}
    for node, value in of_nodes.items():
        words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        found.setdefault("not given" if value is None or value == [] else words, []).append(node)
    return found


def _listed(values: Mapping[str, Sequence[int]], hellos: Sequence[Hello]) -> str:
    """Return the values in words: `4 on node 0 (a), 8 on nodes 1 and 2`."""
    hosts = {one.node: one.host for one in hellos}
    parts = []
    for value, nodes in values.items():
        if len(nodes) == 1:
            parts.append(f"{value} on {named(nodes[0], hosts[nodes[0]])}")
        else:
            parts.append(f"{value} on nodes {', '.join(map(str, nodes[:-1]))} and {nodes[-1]}")
    return ", ".join(parts)
