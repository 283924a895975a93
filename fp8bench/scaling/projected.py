"""More nodes than were measured, projected from one node's step and the links; in no table of measurements.

A ring of all n GPUs all-reduces gradients: each link carries 2 (n - 1) / n of their bytes (Patarasuk & Yuan, 2009), at
the bandwidth of the slowest. FSDP2 gathers the weights twice a micro-batch, and scatters the gradients once. No
straggler, congestion or jitter: so it ends at 8 nodes, up to where a published cluster was within 4 points.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fp8bench.kinds.collectives import CollectivesRecord, collectives_report
from fp8bench.kinds.run.rounds import Mark, Weight
from fp8bench.predict.prediction import gradient_bytes_of, scaled
from fp8bench.records.files import Folders
from fp8bench.records.results import read_kind
from fp8bench.records.select import Measurement
from fp8bench.scaling.points import Projection, Scaled
from fp8bench.schema.collectives import bus_factor
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import made_of
from fp8bench.schema.instance import BOTH_DIRECTIONS, Catalog

MOST_NODES = 8
GIGA, BITS = 1e9, 8
OFF = 0.04
"""How far outside of it a published cluster was, as a share of one node's rate, up to that many nodes."""

ALL_REDUCE = 2.0
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a number by the dtype in which it travels; of others, as float8 ones, 1."""


class Network(NamedTuple):
    """What is known of links. collectives: records that measured them; gbps: of a node's network, if the user gave it,
    in Gbit/s of one direction.
    """

    collectives: Sequence[CollectivesRecord]
    catalog: Catalog
    gbps: float | None = None

    def links(self, instance: str, gpu: str, gpus: int) -> tuple[float, float, list[str]]:
        """Return the GB/s of a GPU's link within a node of so many (0 for one GPU) and of a node's network, and their
        sources in sentences: the most that any all-reduce reached, else the catalogue's figure. gpu: its name in the
        catalogue. Raises UsageError for what is unknown.
        """
        here = [one for one in self.collectives if (one.instance, one.status) == (instance, "ok")]
        every = (row for one in here for row in collectives_report(one, self.catalog).rows)
        rows = [row for row in every if row.operation == "all-reduce" and row.bus_gb_s]
        reached = {size: [row.bus_gb_s or 0.0 for row in rows if (row.nodes > 1) == size] for size in (False, True)}
        listed, known = self.catalog.instances.get(instance), self.catalog.gpus.get(gpu)
        full = (listed.network or {}).get("gbps") if listed else None
        within = max(reached[False], default=((known and known.nvlink_gb_s) or 0.0) / BOTH_DIRECTIONS)
        between = self.gbps / BITS if self.gbps else max(reached[True], default=(full or 0.0) / BITS)
        if gpus > 1 and not within:
            remedy = f"Measure them: `fp8bench collectives --instance {instance}` there"
            raise UsageError(f"the links between GPUs of {instance} are not known", remedy)
        if not between:
            remedy = "Give it to `fp8bench scaling` with --network-gbps, in Gbit/s of one node and direction"
            raise UsageError(f"the network of {instance} is not known", remedy)
        of_node = "as given" if self.gbps else "as measured" if reached[True] else "the catalogue's full rate"
        said = [f"links between nodes: {between:.3g} GB/s a node, {of_node}"]
        if gpus > 1:
            of_gpu = "as measured" if reached[False] else "NVLink's datasheet: none were measured"
            said.append(f"links within a node: {within:.3g} GB/s, {of_gpu}")
        return within, between, said


class OneNode(NamedTuple):
    """A step of one node. gradient_bytes: of all weights. within, between: GB/s of a GPU's link within a node, and of a
    node's network in one direction. nccl_s, exposed_s: all communication of the profiled step and the part that no
    other kernel hid; 0 if no profile saw any. sent: over a ring of n, in bytes of the gradients times (n - 1) / n.
    """

    step_s: float
    gpus: int
    gradient_bytes: float
    within: float
    between: float
    nccl_s: float = 0.0
    exposed_s: float = 0.0
    sent: float = ALL_REDUCE

    def ring_s(self, nodes: int) -> float:
        """Return the seconds of all communication of a step; 0 for one GPU."""
        links = [self.within] * (self.gpus > 1) + [self.between] * (nodes > 1)
        if not links:
            return 0.0
        return bus_factor("all-gather", nodes * self.gpus) * self.sent * self.gradient_bytes / (min(links) * GIGA)

    def project(self, nodes: int) -> tuple[float, float, float]:
        """Return the seconds of a step at least and at most, and of all communication."""
        here_s, all_s, exposed = self.ring_s(1), self.ring_s(nodes), [0.0, 1.0]
        if self.nccl_s and here_s > 0:
            # The communication as measured, and longer by the factor that the model gives.
            here_s, all_s = self.nccl_s, self.nccl_s * all_s / here_s
            exposed = [min(1.0, self.exposed_s / self.nccl_s)]
        works_s = [max(0.0, self.step_s - share * here_s) for share in exposed]
        steps_s = [work_s + max(share * all_s, all_s - work_s) for share, work_s in zip(exposed, works_s, strict=True)]
        return steps_s[0], steps_s[-1], all_s


def measured_links(results_dir: Folders, instances: Iterable[str]) -> Sequence[CollectivesRecord]:
    return read_kind(results_dir, instances, CollectivesRecord)


def projections(found: Scaled, nodes: Sequence[int], network: Network) -> Scaled:
    """Project every series from its measurement of one node with the most GPUs; why one is not, is a note."""
    best = {one.series: one for one in sorted(found.points, key=lambda one: one.world_size) if one.nodes == 1}
    rows, assumed = list[Projection](), list[str]()
    omitted = [] if best else [Mark("not projected: no record is of one node", Weight.NOT_RUN)]
    for point in best.values():
        try:
            if point.measurement is None or point.source != "measured":
                what = f"{point.mode} on {point.instance} is {point.source}, without steps"
                raise UsageError(what, "Measure one node")
            node, said = one_node(point.measurement, point.gpu, network)
        except UsageError as error:
            omitted.append(Mark(f"not projected: {error.what}. {error.remedy}", Weight.NOT_RUN))
            continue
        assumed += said
        for count in nodes:
            least_s, most_s, all_s = node.project(count)
            low, high = node.step_s / most_s, node.step_s / least_s
            rate, usd = point.units_per_s_per_gpu, point.usd_per_billion_units
            row = made_of(
                Projection,
                point,
                nodes=count,
                world_size=count * node.gpus,
                units_per_s_per_gpu=(rate * low, rate * high),
                share_of_one_node=(low, high),
                step_s=(least_s, most_s),
                ring_s=all_s,
                usd_per_billion_units=usd and (usd / high, usd / low),
                from_run_ids=point.run_ids,
                **{"status": "projected", "source": "predicted"},
            )
            rows.append(row)
    rows.sort(key=lambda row: (row.nodes, row.world_size, row.instance, row.batch_size or 0, row.variant_label))
    notes = (*found.notes, *dict.fromkeys(omitted))
    return found._replace(notes=notes, projected=tuple(rows), assumed=tuple(dict.fromkeys(assumed)))


def over_nodes(
    measured: Iterable[Measurement], gpus: Iterable[int], network: Network
) -> tuple[list[Measurement], list[str]]:
    """Return rows of a comparison for as many GPUs of several nodes, from the measured or predicted one of a complete
    node, and why there are none. Each has the geometric mean of its range, and is as uncertain as that and `OFF`.
    """
    found, omitted = list[Measurement](), list[str]()
    for one in measured:
        record, instance = one.latest, network.catalog.instances.get(one.latest.instance)
        whole = instance is not None and record.what.world_size == instance.gpu_count
        if instance is None or not whole or (record.status, record.source) != ("ok", "measured"):
            continue
        for nodes, rest in (divmod(number, instance.gpu_count) for number in gpus if number > instance.gpu_count):
            try:
                if rest or nodes > MOST_NODES:
                    what = f"{instance.key} has {instance.gpu_count} GPUs, and a projection goes to {MOST_NODES} nodes"
                    raise UsageError(what, f"Give multiples of it up to {MOST_NODES * instance.gpu_count}")
                node, _ = one_node(one, instance.gpu or "", network)
            except UsageError as error:
                omitted.append(f"not projected: {error.what}. {error.remedy}")
                continue
            least_s, most_s, _ = node.project(nodes)
            by = math.sqrt(least_s * most_s) / node.step_s
            reach = (1 + one.elsewhere) * (1 + OFF) * math.sqrt(most_s / least_s) - 1
            rounds = tuple(scaled(each, instance.key, by, nodes, nodes=nodes) for each in one.rounds)
            origin = one.measured_on or instance.key
            found.append(replace(one, rounds=rounds, measured_on=origin, origin="predicted", elsewhere=reach))
    return found, [*dict.fromkeys(omitted)]


def one_node(measurement: Measurement, gpu: str, network: Network) -> tuple[OneNode, list[str]]:
    """Return a step, and what is assumed in sentences. Raises UsageError for links or a size that are unknown."""
    rounds = measurement.rounds
    record = next((one for one in reversed(rounds) if one.profile is not None), rounds[-1])
    seen = (record.profile.nccl_s, record.profile.seconds("nccl")) if record.profile else (0.0, 0.0)
    summary, gpus, gradients = record.summary, record.what.world_size, gradient_bytes_of(record)
    if summary is None or gradients is None:
        raise UsageError(f"{record.run_id} does not say how many weights the model has", "Measure it again")
    within, between, said = network.links(record.instance, gpu, gpus)
    said.append(f"{gradients / GIGA:.3g} GB of gradients, by the model's FLOPs (6 a weight and token)")
    if not any(seen):
        said.append("no profile saw communication: a range, from all of it hidden to none")
    sent, parallel = ALL_REDUCE, record.evidence.parallel if record.evidence else None
    if parallel is not None and parallel.gathered_dtype is not None and record.config is not None:
        # The float32 gradients are the unit.
        gathers = (2 if parallel.resharded_after_forward else 1) * record.config.grad_accumulation
        gathered, reduced = (BYTES.get(str(dtype), 1) for dtype in (parallel.gathered_dtype, parallel.reduced_dtype))
        sent = (gathers * gathered + reduced) / BYTES["float32"]
    return OneNode(summary.step_time_s, gpus, gradients, within, between, *seen, sent), said
