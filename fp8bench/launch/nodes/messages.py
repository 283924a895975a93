"""What nodes tell each other, as JSON under keys of the store; what may differ between them, and what is refused.

Node 0 listens to all others, and every other node to node 0. A key is the message's name, the turn if it is of one, and
the node that says it (`view/3/1`). `hello`: to all, each of which judges. `turn`: of node 0, a `Task` to run. `ready`:
whether a node can begin. `go`: all can. `stop`, of nobody alone: one of some node's ranks did not end well, and the
seconds that ranks elsewhere may go on. `view`: what became of a node's ranks, an `Outcome`. `left`: a node's last; that
of node 0 ends the session.
"""

import socket
import time
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, Field, JsonValue

from fp8bench import __version__
from fp8bench.launch.nodes.place import Elastic
from fp8bench.machine.gpus import Machine
from fp8bench.machine.host import cpu_model
from fp8bench.machine.identity import digest, software_here, this_machines_identity
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import MachineIdentity, variables_that_matter
from fp8bench.schema.model import Refusal
from fp8bench.worker.progress import Stage

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
    """A node's first message. host: for lines on standard error alone. settings, hardware, software: see `ALIKE`.
    harmless: what is only marked if it differs. refusal: why this node cannot run.
    """

    node: int
    host: str
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    hardware: dict[str, JsonValue] = Field(default_factory=dict)
    software: dict[str, JsonValue] = Field(default_factory=dict)
    harmless: dict[str, JsonValue] = Field(default_factory=dict)
    machine: MachineIdentity | None = None
    refusal: Refusal | None = None


class Ready(Frozen):
    """Of a node. marks: what readers of records must know of it (e.g. a busy GPU). refusal: why it cannot begin."""

    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Left(Frozen):
    """A node's last message. what: the event that ended it. code: its exit code, if it ends in order. interrupted: the
    signal that ended it. stage: of its rank that was furthest behind.
    """

    what: str = ""
    code: int | None = None
    interrupted: int | None = None
    at_s: float = Field(default_factory=time.time)
    stage: Stage | None = None


def hello(place: Elastic, request: BaseModel, machine: Machine, environ: Mapping[str, str]) -> Hello:
    """Return this node's first message: what the node is, and what was requested on it."""
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


def named(node: int, host: str) -> str:
    """Return the node's name for a line on standard error: `node 1 (ip-10-0-0-12)`."""
    return f"node {node} ({host})"


def judge(hellos: Sequence[Hello]) -> tuple[str, ...]:
    """Return marks of what differs and hardly matters. Raises the error of a node that cannot run, and UsageError for
    nodes that cannot run together. hellos: by node.
    """
    for one in hellos:
        if one.refusal is not None:
            raise one.refusal.error(f"{named(one.node, one.host)}: ")
    for group, remedy in ALIKE.items():
        if unlike := _differing(hellos, group):
            what = "; ".join(f"{name} is {words}" for name, words in list(unlike.items())[:4])
            raise UsageError(f"the nodes differ: {what}", remedy)
    return tuple(f"unlike nodes: {name}" for name in _differing(hellos, "harmless"))


def _differing(hellos: Sequence[Hello], group: str) -> dict[str, str]:
    """Return what differs between nodes, by name, in words: `4 on node 0 (a), 8 on nodes 1 and 2`."""
    values: list[dict[str, JsonValue]] = [getattr(one, group) for one in hellos]
    differing = {}
    for name in dict.fromkeys(name for of_node in values for name in of_node):
        nodes: dict[str, list[Hello]] = {}
        for one, of_node in zip(hellos, values, strict=True):
            value = of_node.get(name)
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            # What was not given is left to the machine.
            nodes.setdefault("not given" if value is None or value == [] else words, []).append(one)
        parts = []
        for words, [*before, last] in nodes.items():
            others = ", ".join(str(one.node) for one in before)
            parts.append(f"{words} on {f'nodes {others} and {last.node}' if before else named(last.node, last.host)}")
        if len(nodes) > 1:
            differing[name] = ", ".join(parts)
    return differing
