"""Decides what may differ between nodes, and what is refused. Pure, except for what a node knows of itself.

A run is one measurement of one kind of machine: nodes with another GPU, driver, number of processes or version, or with
another request, make a measurement that nobody can read. Differences that hardly matter are marked in the record.
"""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from pydantic import JsonValue

from fp8bench import __version__
from fp8bench.launch.nodes.messages import Hello, Refusal, Verdict
from fp8bench.launch.nodes.place import Elastic
from fp8bench.machine.gpus import Machine
from fp8bench.machine.host import cpu_model
from fp8bench.machine.identity import digest, software_here, this_machines_identity
from fp8bench.schema.errors import UsageError
from fp8bench.schema.machine import variables_that_matter

EACH_ITS_OWN = frozenset({"results_dir", "name", "price", "price_per_gpu", "allow_busy"})
"""Settings that change nothing about what ranks do."""

AT_MOST = 4
"""The number of differences in one line."""


class Asked(Protocol):
    """The options of a command. name: the machine's label, as the user gave it."""

    @property
    def name(self) -> str | None: ...

    def model_dump(self, *, mode: str, exclude: set[str]) -> dict[str, Any]: ...


def hello(place: Elastic, request: Asked, machine: Machine, environ: Mapping[str, str]) -> Hello:
    """Return this node's first message: what the node is, and what was requested on it."""
    asked = request.model_dump(mode="json", exclude=set(EACH_ITS_OWN))
    found = software_here(machine.has_gpu)
    return Hello(
        node=place.node,
        host=socket.gethostname(),
        processes=place.local_world_size,
        settings=asked,
        hardware={"GPU": _counted(machine.gpus) or "none"},
        software={"fp8bench": __version__, **{name: it or "absent" for name, it in found.items()}},
        harmless={"CPU": cpu_model(), "CPU cores": machine.cpu_count, **_variables(environ)},
        machine=this_machines_identity(request.name),
    )


def _counted(gpus: Sequence[str]) -> str:
    """Return the GPUs in words: `8 x NVIDIA H100 80GB HBM3`."""
    return ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))


def _variables(environ: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return digests, because values are private to a site."""
    return {name: digest(value) for name, value in variables_that_matter(environ).items()}


def judge(hellos: Sequence[Hello]) -> Verdict:
    """Return the verdict on all nodes. hellos: ordered by node."""
    refusal = next((_of_node(one) for one in hellos if one.refusal is not None), None) or _unlike(hellos)
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


def _of_node(one: Hello) -> Refusal | None:
    """Return the node's own refusal, with the node's name before it."""
    refusal = one.refusal
    return refusal and refusal.model_copy(update={"what": f"{named(one.node, one.host)}: {refusal.what}"})


def _unlike(hellos: Sequence[Hello]) -> Refusal | None:
    processes = _values(hellos, lambda one: one.processes)
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
    found = {name: _values(hellos, partial(_of_part, part, name)) for name in names}
    return {name: values for name, values in found.items() if len(values) > 1}


def _of_part(part: Callable[[Hello], Mapping[str, JsonValue]], name: str, one: Hello) -> JsonValue:
    return part(one).get(name)


def _values(hellos: Iterable[Hello], of: Callable[[Hello], Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in hellos:
        found.setdefault(_word(of(one)), []).append(one.node)
    return found


def _word(value: JsonValue) -> str:
    """Return the value in words: a setting that was not given is left to the machine."""
    if value is None or value == []:
        return "not given"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


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
