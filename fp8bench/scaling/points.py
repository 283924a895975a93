"""The points of a scaling study: one mode on one number of nodes, with the rate of one GPU, its share of the rate on
the smallest number of nodes, the gain over bf16 on as many, and the cost of a billion units. Numbers only.

Two points belong to one series if they are the same work (fingerprint) in the same mode, execution, source, GPU, batch
size per GPU and micro-batches: more nodes then do more work, and the work of each GPU stays the same (weak scaling).
Only points of one series, or of one group of series, are compared.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from fp8bench.kinds.kind import CompareOptions, Labelled
from fp8bench.kinds.priced import WHAT_IF, priced
from fp8bench.kinds.run.row import to_row
from fp8bench.kinds.run.unit_cost import unit_time, used
from fp8bench.pricing.choose import PriceQuery, choose, require_region, why_no_price
from fp8bench.records.layout import RUN
from fp8bench.records.results import Folders, nothing_found
from fp8bench.records.select import Measurement, broadest_first, select
from fp8bench.registry import workloads
from fp8bench.report.written import workers
from fp8bench.schema.config import Device
from fp8bench.schema.errors import unknown_name
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import HARDWARE, differing, same_machine
from fp8bench.schema.record import Record, Source
from fp8bench.schema.throughput import ThroughputRecord
from fp8bench.stats.certainty import BETWEEN_MACHINES
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import ratio

Interval = tuple[float, float]
BILLION = 1e9
REFERENCE = "baseline-bf16"


class Point(Labelled, Frozen):
    """A point in SI units; ratios have no unit; a pair is a 95 % interval. The names are the keys of `--format json`.

    share_of_smallest: the rate per GPU over that on the series' smallest number of nodes, given by smallest_nodes and
    smallest_world_size. faster_vs_reference: the rate over baseline-bf16's on the same number of GPUs, minus 1.
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
    units_per_s_per_gpu_ci: Interval | None = None
    share_of_smallest: float | None = None
    share_of_smallest_ci: Interval | None = None
    smallest_nodes: int | None = None
    smallest_world_size: int | None = None
    is_reference: bool = False
    faster_vs_reference: float | None = None
    faster_vs_reference_ci: Interval | None = None
    printed_faster: float | None = None
    usd_per_hour: float | None = None
    price_as_of: date | None = None
    price_source: str | None = None
    usd_per_billion_units: float | None = None
    usd_per_billion_units_ci: Interval | None = None
    final_loss: float | None = None
    final_loss_vs_reference: float | None = None
    rounds: int = 1
    run_ids: tuple[str, ...] = ()
    citation: str | None = None
    marks: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """The size in words: `1 node`, or within one node `2 GPUs`."""
        if self.nodes > 1:
            return f"{self.nodes} nodes"
        return "1 node" if self.source != "measured" else workers(self.world_size, self.device)


@dataclass(frozen=True)
class Found:
    """A point, and what it was made from. work: its fingerprint. estimate: seconds per unit of all GPUs together; None
    for a figure without samples. measurement: None for published throughput.
    """

    point: Point
    work: str
    estimate: "Estimate | None" = None
    measurement: Measurement | None = None

    @property
    def group(self) -> tuple[object, ...]:
        """What series that can be compared have in common."""
        one = self.point
        return one.source, one.gpu, one.batch_size or 0, one.grad_accumulation or 0, one.unit, self.work

    @property
    def series(self) -> tuple[object, ...]:
        """What points have in common that differ only in the number of nodes."""
        return (*self.group, self.point.variant_label)


@dataclass(frozen=True)
class Scaled:
    """The points of one workload, in the order of a table. notes: sources, and what is not shown, and why."""

    workload: str
    found: tuple[Found, ...]
    notes: tuple[str, ...] = ()


def scaled(
    records: Sequence[Record],
    figures: Sequence[ThroughputRecord],
    workload: str | None,
    options: CompareOptions,
    catalog: Catalog,
    results_dir: Folders,
) -> Scaled:
    """Return what the records of the instances in `options` say, oldest first. workload: None for the one that most of
    them have, and of those the one of most sizes.

    Raises UsageError if not one point can be shown.
    """
    require_region(options.region, catalog, options.instances)
    wanted = options.wanted
    # Published throughput states no batch size, optimizer or micro-batches.
    plain = (wanted.batch_size, wanted.optimizer, wanted.grad_accumulation) == (None, None, None)
    every = select(records, options.every, wanted)
    there: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for one in every:
        if one.latest.status == "ok":
            there[one.latest.what.workload].add((one.latest.instance, one.latest.what.world_size))
    for figure in figures if plain else ():
        there[figure.workload].update((figure.instance, point.world_size) for point in figure.points)
    if workload is not None and workload.partition(",")[0] not in {*there, *workloads()}:
        raise unknown_name("workload", workload, sorted({*there, *workloads()}), "fp8bench list workloads")
    if not there or workload not in (None, *there):
        of = f" of {workload}" if workload else ""
        remedy = "Run `fp8bench run` there, or name another instance or workload"
        raise nothing_found(f"for {', '.join(options.instances)}{of}{wanted.words}", results_dir, remedy, RUN)
    chosen = workload or broadest_first(there)[0]
    others = ", ".join(sorted(there.keys() - {chosen}))
    of_it = [one for one in every if one.latest.what.workload == chosen]
    published = [one for one in figures if plain and one.workload == chosen]
    day = options.as_of or options.today
    made = [_of_run(one, catalog, options, day) for one in of_it if one.latest.status == "ok"]
    made += [one for figure in published for one in _of_throughput(figure, catalog, options, day)]
    days = [one.provenance.published_on for one in published if one.provenance and one.provenance.published_on]
    notes = (
        *([f"also there: {others} (--workload)"] if others and workload is None else []),
        *dict.fromkeys(map(_about_source, published)),
        *([f"at the prices of the source's day: --price-as-of {max(days)}"] if days and options.as_of is None else []),
        *(
            f"omitted: {one.latest.instance}:{one.latest.what.mode} is {one.latest.status}"
            for one in of_it
            if one.latest.status != "ok"
        ),
        *(f"no record of {chosen} for {key}" for key in options.instances if key not in {k for k, _ in there[chosen]}),
    )
    return Scaled(chosen, tuple(_compared(made)), notes)


def _about_source(record: ThroughputRecord) -> str:
    of = record.provenance
    day = f" ({of.published_on})" if of and of.published_on else ""
    return f"{record.source}: {of.citation if of else 'no source'}{day}{f': {record.note}' if record.note else ''}."


def _of_run(measurement: Measurement, catalog: Catalog, options: CompareOptions, day: date) -> Found:
    record, time = measurement.latest, unit_time(measurement)
    row = to_row(measurement, time, priced(record, used(record, catalog), catalog, options, day), catalog)
    product = record.environment.device_name if record.environment else None
    known, instance = catalog.gpu_by_product(product), catalog.instances.get(record.instance)
    gpu = "CPU" if row.device == "cpu" else known.name if known else product or (instance.gpu if instance else None)
    rate, usd = row.throughput_ci_per_s, row.units_per_usd_ci
    estimate = time.by_elapsed if time else None
    point = made_of(
        Point,
        row,
        gpu=gpu or "unknown GPU",
        units_per_s_per_gpu=(row.throughput_per_s or 0.0) / row.world_size,
        units_per_s_per_gpu_ci=rate and (rate[0] / row.world_size, rate[1] / row.world_size),
        usd_per_billion_units=BILLION / row.units_per_usd if row.units_per_usd else None,
        usd_per_billion_units_ci=usd and (BILLION / usd[1], BILLION / usd[0]),
        citation=record.provenance.citation if record.provenance else None,
        marks=row.marks,
    )
    work = "" if options.allow_mismatch else json.dumps(record.fingerprint, sort_keys=True)
    return Found(point, work, estimate, measurement)


def _of_throughput(record: ThroughputRecord, catalog: Catalog, options: CompareOptions, day: date) -> list[Found]:
    instance = catalog.instances.get(record.instance)
    query = PriceQuery(day, day >= options.today, options.region, options.purchase)
    price = choose(instance.prices, query) if instance and record.instance not in options.price else None
    usd = options.price.get(record.instance, price.usd_per_hour if price else None)
    marks = (record.source, *([] if usd else [why_no_price(record.instance, instance, query)]))
    found = []
    for one in record.points:
        per_s, per_hour = one.units_per_s_per_gpu * one.world_size, usd and usd * one.nodes
        point = made_of(
            Point,
            record,
            one,
            gpu=(instance.gpu if instance else None) or "unknown GPU",
            usd_per_hour=per_hour,
            price_as_of=price.as_of if price else None,
            price_source=price.source if price else WHAT_IF if usd else None,
            usd_per_billion_units=per_hour and per_hour / 3600 / per_s * BILLION,
            run_ids=(record.run_id,),
            citation=record.provenance.citation if record.provenance else None,
            marks=marks,
        )
        found.append(Found(point, ""))
    return found


def _compared(found: Sequence[Found]) -> list[Found]:
    """Return the points sorted by group and size, the reference first, each compared with its series' smallest size and
    with the best baseline-bf16 on the same number of GPUs.
    """
    in_order = sorted(
        found,
        key=lambda one: (*one.group, one.point.world_size, one.point.mode != REFERENCE, one.point.variant_label),
    )
    smallest: dict[object, Found] = {}
    models: dict[object, Found] = {}
    for one in in_order:
        smallest.setdefault(one.series, one)
        place = (one.group, one.point.nodes, one.point.world_size)
        if one.point.mode == REFERENCE:
            models[place] = max(models.get(place, one), one, key=lambda each: each.point.units_per_s_per_gpu)
    return [
        _against(one, smallest[one.series], models.get((one.group, one.point.nodes, one.point.world_size)))
        for one in in_order
    ]


def _against(one: Found, smallest: Found, model: Found | None) -> Found:
    point, marks = one.point, list(one.point.marks)
    update: dict[str, Any] = {
        "smallest_nodes": smallest.point.nodes,
        "smallest_world_size": smallest.point.world_size,
        "is_reference": model is one,
    }
    if one is not smallest:
        update["share_of_smallest"], update["share_of_smallest_ci"] = rate_ratio(one, smallest)
        marks += _unlike(one, smallest, smallest.point.size)
    if model is not None and model is not one and not point.emulated and not model.point.emulated:
        ratio, ends = rate_ratio(one, model)
        update |= {"faster_vs_reference": ratio - 1, "faster_vs_reference_ci": ends and (ends[0] - 1, ends[1] - 1)}
        marks += [mark for mark in _unlike(one, model, model.point.variant_label) if "machine" in mark]
        if point.final_loss is not None and model.point.final_loss is not None:
            update["final_loss_vs_reference"] = point.final_loss - model.point.final_loss
    return replace(one, point=point.model_copy(update={**update, "marks": tuple(marks)}))


def rate_ratio(one: Found, other: Found) -> tuple[float, Interval | None]:
    """Return the rate per GPU over the other's, and its 95 % interval, None if either has no samples."""
    value = one.point.units_per_s_per_gpu / other.point.units_per_s_per_gpu
    if one.estimate is None or other.estimate is None:
        return value, None
    held = ratio(one.estimate, other.estimate)
    return value, held.interval and (value * held.value / held.interval[1], value * held.value / held.interval[0])


def _unlike(one: Found, other: Found, name: str) -> list[str]:
    """Return marks where software or machine differ. name: of the other, in words."""
    if one.measurement is None or other.measurement is None:
        return []
    unlike = [key for key in differing(one.measurement.software, other.measurement.software) if key not in HARDWARE]
    said = [f"unlike {name} in {', '.join(unlike)}"] if unlike else []
    if not same_machine(one.measurement.machine, other.measurement.machine):
        differ = f"machines of one type differ by up to {BETWEEN_MACHINES * 100:.2g} %"
        said.append(f"on another machine than {name}: {differ}")
    return said
