"""How far the projection is off from published figures: each study's one node is projected to its other numbers of
nodes, and compared with its figures.

A study says neither how many tokens a step has nor what its links reached. So three sizes of a step are tried, the
links are the catalogue's at full speed, and the hidden share is unknown: the projection is a range, from all
communication hidden to none, and its error is the distance of the figure from the range.
"""

from collections.abc import Iterable, Sequence

from fp8bench.predict.nodes import OneNode, project
from fp8bench.predict.work import BYTES_A_GRADIENT
from fp8bench.report.document import Column, CsvLines, Document, Heading, Note, Sentence, Table, Warned, blocks
from fp8bench.scaling.points import Point
from fp8bench.scaling.projected import Wanted, links_of
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import Catalog
from fp8bench.schema.throughput import ThroughputRecord

PARAMETERS = {"llm-1b": 1.2e9, "llm-7b": 6.7e9}
"""Weights of the workloads, by workload name."""

UNITS_A_STEP = (4096, 8192, 16384)
"""Units of a GPU per step: two, four or eight sequences of 2048 tokens."""

SHOWN = 8192
METHOD = (
    "Relative to one node's rate per GPU. Projected: ring all-reduce over the slowest link, from nothing hidden to all "
    "of it; off: how far outside that range, below 0 where the published one fell further. Links are taken at their "
    "datasheet's full speed. How many tokens a step has is assumed: the source does not say it."
)


class Case(Frozen):
    """A published figure and its projection. units_a_step: per GPU, assumed. published, projected: over one node's rate
    per GPU. off: published minus the nearer end, 0 within the range; below 0 if the published rate fell further.
    """

    workload: str
    mode: str
    nodes: int
    units_a_step: int
    published: float
    projected: tuple[float, float]
    off: float


def cases(records: Iterable[ThroughputRecord], catalog: Catalog) -> tuple[Case, ...]:
    """Return the cases of every record whose workload has known weights and whose first point is one node."""
    return tuple(
        case
        for record in records
        if record.workload in PARAMETERS
        for units in UNITS_A_STEP
        for case in _of_record(record, units, catalog)
    )


def _of_record(record: ThroughputRecord, units: int, catalog: Catalog) -> Iterable[Case]:
    first, *others = record.points
    instance = catalog.instances.get(record.instance)
    gpu = instance.gpu if instance else None
    if first.nodes != 1 or gpu is None:
        return
    point = Point(
        instance=record.instance, gpu=gpu, workload=record.workload, mode=record.mode, recipe=record.recipe,
        source=record.source, nodes=1, world_size=first.world_size, unit=record.unit,
        units_per_s_per_gpu=first.units_per_s_per_gpu,
    )  # fmt: skip
    links, _ = links_of(point, instance, Wanted(()), catalog)
    step_s = units / first.units_per_s_per_gpu
    node = OneNode(step_s, first.world_size, BYTES_A_GRADIENT * PARAMETERS[record.workload])
    for other in others:
        step = project(node, links, other.nodes)
        low, high = step_s / step.most_s, step_s / step.least_s
        share = other.units_per_s_per_gpu / first.units_per_s_per_gpu
        off = min(0.0, share - low) or max(0.0, share - high)
        yield Case(
            workload=record.workload, mode=record.mode, nodes=other.nodes, units_a_step=units, published=share,
            projected=(low, high), off=off,
        )  # fmt: skip


def worst(found: Sequence[Case], units: int) -> Case:
    """Return the case with the largest error for this size of a step."""
    return max((one for one in found if one.units_a_step == units), key=lambda one: abs(one.off))


def document(found: Sequence[Case]) -> Document:
    """Show the cases of one size of a step, and the worst case of each size. Raises UsageError without cases."""
    if not found:
        raise UsageError("no published throughput is here to check with", "Reinstall fp8bench: its own file is missing")
    shown = [one for one in found if one.units_a_step == SHOWN]
    table = Table(
        (
            Column("workload", tuple(one.workload for one in shown), "word", once=True),
            Column("mode", tuple(one.mode for one in shown), "word", once=True),
            Column("nodes", tuple(str(one.nodes) for one in shown)),
            Column("published, of 1 node", tuple(f"{one.published * 100:.1f} %" for one in shown)),
            Column("projected, of 1 node", tuple(_ends(one) for one in shown), "interval"),
            Column("off by, points", tuple(_points(one.off) for one in shown)),
        ),
        naming=3,
    )
    said = [_worst_of(found, units) for units in UNITS_A_STEP]
    return Document(
        blocks(
            [
                Heading(f"Published figures against the projection from one node, {SHOWN:,} tokens a GPU and step"),
                table,
            ],
            [*map(Sentence, said), Sentence(_by_nodes(shown))],
            [Note(METHOD)],
        ),
        data=list(found),
        lines=CsvLines(tuple(Case.model_fields), tuple(tuple(one.model_dump(mode="json").values()) for one in found)),
    )


def _ends(one: Case) -> str:
    low, high = one.projected
    return f"{low * 100:.1f}-{high * 100:.1f} %"


def _points(off: float) -> str:
    return "0" if off == 0 else f"{off * 100:+z.1f}"


def _worst_of(found: Sequence[Case], units: int) -> str:
    one = worst(found, units)
    of_size = [case for case in found if case.units_a_step == units]
    within = sum(case.off == 0 for case in of_size)
    return (
        f"With {units:,} tokens a GPU and step: {within} of {len(of_size)} within the range, and at worst "
        f"{_points(one.off)} points ({one.workload}, {one.mode}, {one.nodes} nodes)."
    )


def _by_nodes(found: Sequence[Case]) -> str:
    by_nodes = {nodes: [one for one in found if one.nodes == nodes] for nodes in sorted({one.nodes for one in found})}
    off = [f"{max(abs(one.off) for one in of) * 100:.1f} on {nodes}" for nodes, of in by_nodes.items()]
    return f"The projection hardly changes beyond 2 nodes; its error, at most in points, does: {', '.join(off)} nodes."


def caution(found: Sequence[Case]) -> Warned | None:
    """Return the warning that accompanies every projection; None without cases."""
    if not found:
        return None
    one = max(found, key=lambda case: abs(case.off))
    return Warned(
        "projections are what links allow, without stragglers and congestion: a published cluster of "
        f"{one.nodes} nodes was {abs(one.off) * 100:.0f} points of one node's rate outside such a range "
        "(`fp8bench scaling --check`)"
    )
