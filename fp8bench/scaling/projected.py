"""More nodes than were measured, projected from one node's record and the links (`predict.nodes`): what the records
must provide, and what is assumed if they do not. A projection is not a record, and no table of measurements contains
it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fp8bench.kinds.collectives.measure import CollectivesRecord
from fp8bench.kinds.kind import Unread
from fp8bench.predict.nodes import Links, OneNode, ProjectedStep, project
from fp8bench.predict.source import tokens_of
from fp8bench.predict.step import BOTH_DIRECTIONS
from fp8bench.predict.work import BYTES_A_GRADIENT, FLOPS_A_WEIGHT_AND_TOKEN
from fp8bench.records.named import find_kept
from fp8bench.records.results import read_kind
from fp8bench.report.written import workers
from fp8bench.scaling.points import Found, Point, words_for
from fp8bench.schema.config import Device
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.record import Record
from fp8bench.stats.collectives import Link, link

BITS = 8
LARGE_BYTES = 64 * 2**20
"""The size from which the time of an all-reduce depends on bandwidth alone, on every link measured so far."""

RANGE = "without a profile that saw communication it is a range: all of it hidden, as far as a step is long, to nothing"


class Projection(Frozen):
    """A mode on `nodes` nodes like the measured one. Pairs are ranges, not 95 % intervals: their ends are equal if the
    record shows how much communication other kernels hide. ring_s: seconds of all communication.
    """

    status: str = "projected"
    instance: str
    gpu: str
    workload: str
    mode: str
    recipe: str | None
    execution: Variant | None
    batch_size: int | None
    device: Device = "cuda"
    nodes: int
    world_size: int
    unit: str
    units_per_s_per_gpu: tuple[float, float]
    share_of_one_node: tuple[float, float]
    step_s: tuple[float, float]
    ring_s: float
    usd_per_billion_units: tuple[float, float] | None
    from_run_ids: tuple[str, ...]

    @property
    def mode_label(self) -> str:
        """The mode with its recipe and execution, e.g. `te-fp8:delayed/eager`."""
        return f"{':'.join(filter(None, (self.mode, self.recipe)))}{suffix(self.execution)}"


@dataclass(frozen=True)
class Projections:
    """rows: by nodes, instance and mode. assumed: sentences. omitted: why series have none. warnings: reliability."""

    rows: tuple[Projection, ...]
    assumed: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """What to project. nodes: each number of nodes. collectives: of one node, by instance; an instance without a record
    uses its datasheet. between: of several nodes, by instance. given: for all instances, takes precedence.
    network_gbps: of a node in one direction; None: what `between` shows, else the catalogue's.
    """

    nodes: tuple[int, ...]
    collectives: Mapping[str, CollectivesRecord] = field(default_factory=dict)
    between: Mapping[str, CollectivesRecord] = field(default_factory=dict)
    given: CollectivesRecord | None = None
    network_gbps: float | None = None

    def of(self, instance: str) -> CollectivesRecord | None:
        """Return the record of the links within a node of this instance; None if they were not measured."""
        given = self.given if self.given and self.given.config.nodes == 1 else None
        return given or self.collectives.get(instance)

    def between_nodes(self, instance: str) -> CollectivesRecord | None:
        """Return the record of the links between nodes of this instance; None if they were not measured."""
        given = self.given if self.given and self.given.config.nodes > 1 else None
        return given or self.between.get(instance)


def with_collectives(
    nodes: tuple[int, ...],
    network_gbps: float | None,
    given: str | None,
    instances: Iterable[str],
    results_dir: Path,
    unread: Unread,
) -> Wanted:
    """Read the records of collectives. given: names one record for all instances; if None, each instance uses the
    record with the largest all-reduce (the latest of several), because small ones do not show a link's bandwidth.
    Raises UsageError if `given` names no record.
    """
    named = None if given is None else find_kept(given, results_dir, CollectivesRecord, unread)
    kept = read_kind(results_dir, instances, CollectivesRecord)
    ok = sorted((record for record in kept if record.status == "ok"), key=_largest_bytes)
    within = {record.instance: record for record in ok if record.config.nodes == 1}
    between = {record.instance: record for record in ok if record.config.nodes > 1 and all_reduces(record)}
    return Wanted(nodes, within, between, named, network_gbps)


def _largest_bytes(record: CollectivesRecord) -> int:
    """Return the size of the largest all-reduce; 0 if none was timed."""
    return max((size for size, _ in all_reduces(record)), default=0)


def all_reduces(record: CollectivesRecord) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of the all-reduces that were timed."""
    return [
        (one.size_bytes, one.time_s)
        for one in record.timings
        if one.operation == "all-reduce" and one.time_s is not None
    ]


def projections(found: Sequence[Found], wanted: Wanted, catalog: Catalog) -> Projections:
    """Project every series. found: of one workload. Raises the first UsageError if nothing can be projected."""
    rows: list[Projection] = []
    assumed: dict[str, None] = {}
    refused: list[UsageError] = []
    for one in _of_one_node(found):
        try:
            node, links, said = _facts(one, wanted, catalog)
        except UsageError as error:
            refused.append(error)
            continue
        steps = [project(node, links, nodes) for nodes in wanted.nodes]
        rows += [_row(one.point, node, step) for step in steps]
        assumed.update(dict.fromkeys(said))
    if not rows:
        if refused:
            raise refused[0]
        raise UsageError("no record is of one node, from which more could be projected", "Run one node first")
    rows.sort(key=lambda row: (row.nodes, row.instance, row.mode_label))
    omitted = tuple(dict.fromkeys(f"not projected: {error.what}" for error in refused))
    return Projections(tuple(rows), tuple(assumed), omitted)


def _of_one_node(found: Sequence[Found]) -> list[Found]:
    """Return for each series the measurement of one node with the most GPUs."""
    best: dict[object, Found] = {}
    for one in found:
        known = best.get(one.point.series)
        if one.point.nodes == 1 and (known is None or known.point.world_size < one.point.world_size):
            best[one.point.series] = one
    return list(best.values())


def _facts(one: Found, wanted: Wanted, catalog: Catalog) -> tuple[OneNode, Links, list[str]]:
    """Return the node, its links and sentences about what is assumed. Raises UsageError if something is missing."""
    if one.measurement is None or one.point.source != "measured":
        raise UsageError(
            f"{one.point.mode} on {one.point.instance} is {one.point.source}, without the steps that are needed",
            "Name an instance that was measured",
        )
    record = _profiled(one.measurement.rounds)
    node = one_node(record, gradient_bytes(record))
    links, said = links_of(one.point, catalog.instances.get(one.point.instance), wanted, catalog)
    record_of_links = wanted.of(one.point.instance)
    if record_of_links is not None and _largest_bytes(record_of_links) < min(LARGE_BYTES, node.gradient_bytes):
        said.append("no large all-reduce was timed: links may carry more than what was measured")
    if node.hidden is None:
        said.append(RANGE)
    else:
        said.append(
            f"{one.point.mode_label}: {node.hidden * 100:.0f} % of communication stays hidden, as one node's profile "
            f"shows it ({(node.nccl_s or 0) * 1e3:.1f} ms, {(node.exposed_s or 0) * 1e3:.1f} exposed)"
        )
    said.append(f"{node.gradient_bytes / 1e9:.3g} GB of gradients, by the model's FLOPs (6 a weight and token)")
    return node, links, said


def _profiled(rounds: Sequence[Record]) -> Record:
    """Return the last record that was profiled, or the last record if none was."""
    return next((one for one in reversed(rounds) if one.profile is not None), rounds[-1])


def one_node(record: Record, gradients: float) -> OneNode:
    """Return the node with the record's own step. A profile without communication does not measure what was hidden."""
    profile, summary = record.profile, record.summary
    if summary is None:
        raise ValueError("a record that is ok has a summary")
    seen = profile is not None and profile.nccl_s > 0
    return OneNode(
        step_s=summary.step_time_s,
        gpus=record.what.world_size,
        gradient_bytes=gradients,
        nccl_s=profile.nccl_s if profile is not None and seen else None,
        exposed_s=profile.by_category.get("nccl", 0.0) if profile is not None and seen else None,
    )


def gradient_bytes(record: Record) -> float:
    """Return the bytes of all weights' float32 gradients, from the operations of a step: 6 for each weight and token.
    Raises UsageError if the record does not say how many tokens a step has.
    """
    summary = record.summary
    tokens = None
    if summary is not None:
        a_unit = 1 if summary.unit == "tokens" else tokens_of(record.fingerprint.get("sizes") or {})
        tokens = None if a_unit is None else a_unit * summary.units_per_step
    if summary is None or not summary.flops_per_step or not tokens:
        raise UsageError(
            f"{record.run_id} does not say how many weights the model has", "Project from a record with its FLOPs"
        )
    return BYTES_A_GRADIENT * summary.flops_per_step / (FLOPS_A_WEIGHT_AND_TOKEN * tokens)


def links_of(point: Point, instance: Instance | None, wanted: Wanted, catalog: Catalog) -> tuple[Links, list[str]]:
    """Return the links of a node like this point's, and their sources in sentences. Raises UsageError if unknown."""
    network, of_network = _network(point, instance, wanted)
    within, of_links = _within(point, wanted, catalog) if point.world_size > 1 else (None, list[str]())
    measured = wanted.of(point.instance)
    return Links(
        bus_gb_s=within.bus_gb_s if within else None,
        node_gb_s=network,
        latency_s=within.latency_s if within else 0.0,
        latency_ranks=measured.config.world_size if measured else 2,
    ), [*of_links, of_network]


def _network(point: Point, instance: Instance | None, wanted: Wanted) -> tuple[float, str]:
    """Return the GB/s of a ring's links between nodes, and their source in a sentence. Raises UsageError if unknown."""
    if wanted.network_gbps is not None:
        return wanted.network_gbps / BITS, f"a node's network carries {wanted.network_gbps:g} Gbit/s, as given"
    record = wanted.between_nodes(point.instance)
    if record is not None:
        config = record.config
        found = link("all-reduce", _timed(record), config.world_size)
        return found.bus_gb_s, (
            f"links between nodes: {found.bus_gb_s:.3g} GB/s of bus bandwidth, as {config.nodes} nodes of "
            f"{record.instance} with {workers(config.world_size, config.device)} were measured"
        )
    known = (instance.network or {}).get("gbps") if instance else None
    if not isinstance(known, int | float):
        raise UsageError(
            f"the network of {point.instance} is not known, so neither is what nodes can send each other",
            "Give it with --network-gbps, in Gbit/s of one node and direction, or measure it: `torchrun --nnodes 2 ... "
            "-m fp8bench collectives`",
        )
    return known / BITS, f"a node's network carries its full {known:g} Gbit/s, which none does quite"


def _within(point: Point, wanted: Wanted, catalog: Catalog) -> tuple[Link, list[str]]:
    record = wanted.of(point.instance)
    if record is not None:
        ranks = record.config.world_size
        found = link("all-reduce", _timed(record), ranks)
        return found, [
            f"links within a node: {found.bus_gb_s:.3g} GB/s of bus bandwidth and {found.latency_s * 1e6:.0f} us for a "
            f"small message, as {workers(ranks, record.config.device)} of {record.instance} were measured"
        ]
    gpu = catalog.gpus.get(point.gpu)
    if gpu is None or gpu.nvlink_gb_s is None:
        raise UsageError(
            f"the links between {words_for([point.device])[1]} of {point.instance} are not known",
            f"Measure them: `fp8bench collectives --instance {point.instance}` there",
        )
    gb_s = gpu.nvlink_gb_s / BOTH_DIRECTIONS
    return Link(0.0, gb_s), [
        f"links within a node reach NVLink's full {gb_s:g} GB/s, by the datasheet: none were measured"
    ]


def _timed(record: CollectivesRecord) -> list[tuple[int, float]]:
    """Return the record's all-reduces. Raises UsageError if there are none."""
    timed = all_reduces(record)
    if not timed:
        raise UsageError(
            f"{record.run_id} timed no all-reduce", "Measure it: `fp8bench collectives --operation all-reduce`"
        )
    return timed


def _row(point: Point, node: OneNode, step: ProjectedStep) -> Projection:
    share = (node.step_s / step.most_s, node.step_s / step.least_s)
    usd = point.usd_per_billion_units
    return made_of(
        Projection,
        point,
        nodes=step.nodes,
        world_size=step.gpus,
        units_per_s_per_gpu=(point.units_per_s_per_gpu * share[0], point.units_per_s_per_gpu * share[1]),
        share_of_one_node=share,
        step_s=(step.least_s, step.most_s),
        ring_s=step.ring_s,
        usd_per_billion_units=None if usd is None else (usd / share[1], usd / share[0]),
        from_run_ids=point.run_ids,
    )
