"""The points of a scaling study: one mode on one number of nodes, with the rate of one GPU, its share of the rate on
the smallest number of nodes, the gain over the reference mode, and the cost of a billion units. Numbers only;
`document` and `figure` show them.

Two points belong to one series if they have the same mode, execution, source, GPU, batch size per GPU and
micro-batches: more nodes then do more work, and the work of each GPU stays the same (weak scaling). All ratios are of
rates per GPU.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import WHAT_IF, priced
from fp8bench.kinds.run.row import to_row
from fp8bench.kinds.run.unit_cost import unit_time, used
from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, choose, why_no_price
from fp8bench.records.select import Measurement, in_micro_batches
from fp8bench.report.written import workers
from fp8bench.schema.config import Device
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import HARDWARE, differing, same_machine
from fp8bench.schema.record import Record, Source
from fp8bench.schema.throughput import ThroughputPoint, ThroughputRecord
from fp8bench.stats.certainty import BETWEEN_MACHINES, TOO_FEW_STEPS

if TYPE_CHECKING:
    from fp8bench.stats.estimate import Estimate

Key = tuple[object, ...]
BILLION = 1e9


class Point(Frozen):
    """A point in SI units; ratios have no unit; a pair is a 95 % interval. The names are the keys of `--format json`.

    share_of_smallest: the rate per GPU over that on the series' smallest number of nodes, given by smallest_nodes and
    smallest_world_size. faster_vs_reference: the rate over the reference mode's on the same number of GPUs, minus 1.
    printed_faster: the same gain as a published source prints it. final_loss: only of published figures.
    grad_accumulation: micro-batches a step; null for a figure from elsewhere.
    """

    instance: str
    gpu: str
    workload: str
    mode: str
    recipe: str | None
    execution: Variant | None = None
    batch_size: int | None = None
    grad_accumulation: int | None = None
    source: Source
    device: Device = "cuda"
    emulated: bool = False
    nodes: int
    world_size: int
    unit: str
    units_per_s_per_gpu: float
    units_per_s_per_gpu_ci: tuple[float, float] | None = None
    share_of_smallest: float | None = None
    share_of_smallest_ci: tuple[float, float] | None = None
    smallest_nodes: int | None = None
    smallest_world_size: int | None = None
    is_reference: bool = False
    faster_vs_reference: float | None = None
    faster_vs_reference_ci: tuple[float, float] | None = None
    printed_faster: float | None = None
    usd_per_hour: float | None = None
    price_as_of: date | None = None
    price_source: str | None = None
    usd_per_billion_units: float | None = None
    usd_per_billion_units_ci: tuple[float, float] | None = None
    final_loss: float | None = None
    final_loss_vs_reference: float | None = None
    rounds: int = 1
    run_ids: tuple[str, ...] = ()
    citation: str | None = None
    marks: tuple[str, ...] = ()

    @property
    def mode_label(self) -> str:
        """The mode with its recipe and execution, e.g. `te-fp8:delayed/eager`."""
        return f"{':'.join(filter(None, (self.mode, self.recipe)))}{suffix(self.execution)}"

    @property
    def size(self) -> tuple[int, int]:
        """The number of nodes, and the number of GPUs on all of them."""
        return self.nodes, self.world_size

    @property
    def group(self) -> Key:
        """What series that can be compared have in common."""
        return self.gpu, self.source, self.batch_size, self.grad_accumulation, self.unit

    @property
    def series(self) -> Key:
        """What points have in common that differ only in the number of nodes."""
        return (*self.group, self.mode, self.recipe, self.execution)


@dataclass(frozen=True)
class Found:
    """A point, and what it was made from. estimate: seconds per unit of all GPUs together; None for a figure without
    samples. measurement: None for published throughput.
    """

    point: Point
    estimate: "Estimate | None" = None
    measurement: Measurement | None = None


def of_runs(measurements: Sequence[Measurement], catalog: Catalog, options: CompareOptions, day: date) -> list[Found]:
    """Return the points of the complete measurements that are ok. day: the day of the prices."""
    return [
        _of_run(one, catalog, options, day)
        for one in measurements
        if one.latest.status == "ok" and one.latest.summary is not None
    ]


def _of_run(measurement: Measurement, catalog: Catalog, options: CompareOptions, day: date) -> Found:
    record = measurement.latest
    found = unit_time(measurement)
    row = to_row(measurement, found, priced(record, used(record, catalog), catalog, options, day), catalog)
    interval, per_usd = row.throughput_ci_per_s, row.units_per_usd
    point = made_of(
        Point,
        row,
        gpu=gpu_of(record, catalog),
        units_per_s_per_gpu=(row.throughput_per_s or 0.0) / row.world_size,
        units_per_s_per_gpu_ci=None if interval is None else tuple(end / row.world_size for end in interval),
        usd_per_billion_units=BILLION / per_usd if per_usd else None,
        usd_per_billion_units_ci=_inverted(row.units_per_usd_ci),
        citation=record.provenance.citation if record.provenance else None,
    )
    estimate = found.by_elapsed if found else None
    if estimate is not None and estimate.interval is None:
        point = point.model_copy(update={"marks": (*point.marks, TOO_FEW_STEPS)})
    return Found(point, estimate, measurement)


def gpu_of(record: Record, catalog: Catalog) -> str:
    """Return the GPU's name in the catalogue, else in the driver, else (imported figures) in its instance; or `CPU`."""
    if record.config is not None and record.config.device == "cpu":
        return "CPU"
    product = record.environment.device_name if record.environment else None
    known = catalog.gpu_by_product(product)
    if known is not None or product is not None:
        return known.name if known else str(product)
    instance = catalog.instances.get(record.instance)
    return (instance.gpu if instance else None) or "unknown GPU"


def of_throughput(
    records: Iterable[ThroughputRecord], catalog: Catalog, options: CompareOptions, day: date
) -> list[Found]:
    """Return every point of every record. day: the day of the prices."""
    return [
        Found(_of_throughput(record, point, catalog, options, day)) for record in records for point in record.points
    ]


def _of_throughput(
    record: ThroughputRecord, point: ThroughputPoint, catalog: Catalog, options: CompareOptions, day: date
) -> Point:
    instance = catalog.instances.get(record.instance)
    query = PriceQuery(day, day >= options.today, options.region, options.purchase)
    price = choose(instance.prices, query) if instance else None
    assumed = options.price.get(record.instance)
    usd = assumed if assumed is not None else price.usd_per_hour if price else None
    per_hour = None if usd is None else usd * point.nodes
    per_usd = None if per_hour is None else cost.units_per_usd(point.units_per_s_per_gpu * point.world_size, per_hour)
    from_catalogue = price if assumed is None else None
    return made_of(
        Point,
        record,
        point,
        gpu=(instance.gpu if instance else None) or "unknown GPU",
        usd_per_hour=per_hour,
        price_as_of=from_catalogue.as_of if from_catalogue else None,
        price_source=from_catalogue.source if from_catalogue else WHAT_IF if assumed is not None else None,
        usd_per_billion_units=BILLION / per_usd if per_usd else None,
        run_ids=(record.run_id,),
        citation=record.provenance.citation if record.provenance else None,
        marks=(record.source, *([] if usd is not None else [why_no_price(record.instance, instance, query)])),
    )


def compared(found: Sequence[Found], reference: str) -> list[Found]:
    """Return the points sorted by source, GPU, batch size, micro-batches and size, the reference first. Each is
    compared with its series' smallest size, and with the best of the reference mode on the same number of GPUs.
    reference: MODE or MODE:RECIPE.
    """
    smallest: dict[Key, Found] = {}
    models: dict[Key, Found] = {}
    for one in sorted(found, key=lambda each: each.point.size):
        smallest.setdefault(one.point.series, one)
    for one in found:
        place = (one.point.group, one.point.size)
        known = models.get(place)
        better = known is None or one.point.units_per_s_per_gpu > known.point.units_per_s_per_gpu
        if reference in names_of(one.point) and better:
            models[place] = one
    done = [_against(one, smallest[one.point.series], models.get((one.point.group, one.point.size))) for one in found]
    return sorted(done, key=lambda each: _order(each.point, reference))


def names_of(point: Point) -> tuple[str, str]:
    """Return the names of the mode without and with its recipe."""
    return point.mode, ":".join(filter(None, (point.mode, point.recipe)))


def _order(point: Point, reference: str) -> tuple[object, ...]:
    first = reference not in names_of(point)
    work = point.batch_size or 0, point.grad_accumulation or 0
    return point.source, point.gpu, *work, point.size, first, point.mode_label


def _against(one: Found, smallest: Found, model: Found | None) -> Found:
    update: dict[str, Any] = {
        "smallest_nodes": smallest.point.nodes,
        "smallest_world_size": smallest.point.world_size,
        "is_reference": model is one,
    }
    if one is not smallest:
        share, interval = rate_ratio(one, smallest)
        update |= {"share_of_smallest": share, "share_of_smallest_ci": interval}
        elsewhere = _unlike_machine(one, smallest, size_of(smallest.point))
        update["marks"] = (*one.point.marks, *_unlike_software(one, smallest), *elsewhere)
    if model is not None and model is not one and not one.point.emulated and not model.point.emulated:
        faster, interval = rate_ratio(one, model)
        update["faster_vs_reference"] = faster - 1
        update["faster_vs_reference_ci"] = None if interval is None else (interval[0] - 1, interval[1] - 1)
        update["marks"] = (*update.get("marks", one.point.marks), *_unlike_machine(one, model, model.point.mode_label))
        if one.point.final_loss is not None and model.point.final_loss is not None:
            update["final_loss_vs_reference"] = one.point.final_loss - model.point.final_loss
    return replace(one, point=one.point.model_copy(update=update))


def rate_ratio(one: Found, other: Found) -> tuple[float, tuple[float, float] | None]:
    """Return the rate per GPU over the other's, and its 95 % interval, None if either has no samples."""
    value = one.point.units_per_s_per_gpu / other.point.units_per_s_per_gpu
    if one.estimate is None or other.estimate is None:
        return value, None
    # Imported here because it imports numpy, and published figures have no samples.
    from fp8bench.stats.ratio import ratio

    held = ratio(one.estimate, other.estimate)
    if held.low is None or held.high is None:
        return value, None
    return value, (value * held.value / held.high, value * held.value / held.low)


def _unlike_software(one: Found, smallest: Found) -> list[str]:
    if one.measurement is None or smallest.measurement is None:
        return []
    mine, theirs = one.measurement.software, smallest.measurement.software
    unlike = [name for name in differing(mine, theirs) if name not in HARDWARE]
    return [f"unlike {size_of(smallest.point)} in {', '.join(unlike)}"] if unlike else []


def _unlike_machine(one: Found, other: Found, name: str) -> list[str]:
    """Return a mark if the two were measured on different machines. name: of the other, in words."""
    if one.measurement is None or other.measurement is None:
        return []
    if same_machine(one.measurement.machine, other.measurement.machine):
        return []
    return [f"on another machine than {name}: machines of one type differ by up to {BETWEEN_MACHINES * 100:.2g} %"]


def work_apart(points: Iterable[Point]) -> Callable[[Point], str]:
    """Return a function that names what distinguishes a point's work from that of other points, e.g. `, batch 64, 4
    micro-batches`; empty where all points have the same.
    """
    every = list(points)
    batches = len({one.batch_size for one in every}) > 1
    divided = len({one.grad_accumulation for one in every if one.grad_accumulation}) > 1

    def named(point: Point) -> str:
        batch = f", batch {point.batch_size}" if batches and point.batch_size else ""
        pieces = point.grad_accumulation if divided else None
        return f"{batch}, {in_micro_batches(pieces)}" if pieces else batch

    return named


def size_of(point: Point) -> str:
    """Return the size in words: `1 node`, or within one node `2 GPUs`."""
    if point.nodes > 1:
        return f"{point.nodes} nodes"
    return "1 node" if point.source != "measured" else workers(point.world_size, point.device)


def words_for(devices: Iterable[Device]) -> tuple[str, str]:
    """Return the words for one worker on these devices and for several: of a GPU and a CPU together, `worker`."""
    of = set(devices)
    if len(of) > 1:
        return "worker", "workers"
    return ("process", "processes") if of == {"cpu"} else ("GPU", "GPUs")


def _inverted(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (BILLION / interval[1], BILLION / interval[0])
