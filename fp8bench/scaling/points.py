"""The points of a scaling study: one mode on one number of nodes. Those of one series are the same work, mode, source,
GPU, batch size per GPU and micro-batches: more nodes do more work, each GPU the same (weak scaling). Only points of one
series, or of one group of series, are compared.
"""

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

from pydantic import Field, SkipValidation

from fp8bench.kinds.kind import CompareOptions, Named
from fp8bench.kinds.priced import Used, priced
from fp8bench.kinds.run.rounds import Mark, MarkField, Weight, doubt
from fp8bench.kinds.run.row import to_row
from fp8bench.pricing.choose import require_region
from fp8bench.records.files import Folders
from fp8bench.records.layout import RUN
from fp8bench.records.results import nothing_found
from fp8bench.records.select import Measurement, broadest_first, of_several, select
from fp8bench.registry import hidden_modes, workloads
from fp8bench.schema.errors import unknown_name
from fp8bench.schema.files import made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import HARDWARE, differing, same_machine
from fp8bench.schema.record import Record, ThroughputRecord
from fp8bench.stats.certainty import BETWEEN_MACHINES
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import ratio
from fp8bench.tables.written import Interval, counted, workers

BILLION = 1e9
REFERENCE = "baseline-bf16"


class Point(Named):
    """A point in SI units; ratios have no unit; a pair is a 95 % interval. The names are the keys of `--format json`.

    share_of_smallest: the rate per GPU over that on the series' smallest number of nodes. faster_vs_reference: the rate
    over baseline-bf16's on the same number of GPUs, minus 1. printed_faster: the same gain as a published source prints
    it. work, estimate, measurement: the fingerprint, seconds per unit of all GPUs together, and the records.
    """

    gpu: str
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
    marks: tuple[MarkField, ...] = ()
    work: str = Field(default="", exclude=True)
    estimate: SkipValidation[Estimate | None] = Field(default=None, exclude=True)
    measurement: SkipValidation[Measurement | None] = Field(default=None, exclude=True)

    @property
    def group(self) -> tuple[object, ...]:
        """What series that can be compared have in common."""
        return self.source, self.gpu, self.batch_size or 0, self.grad_accumulation or 0, self.unit, self.work

    @property
    def series(self) -> tuple[object, ...]:
        """What points have in common that differ only in the number of nodes."""
        return (*self.group, self.variant_label)


class Projection(Named):
    """A mode on `nodes` nodes like the measured one. Pairs are ranges, not 95 % intervals: their ends are equal if the
    record shows how much communication other kernels hide. ring_s: seconds of all communication.
    """

    gpu: str
    unit: str
    units_per_s_per_gpu: tuple[float, float]
    share_of_one_node: tuple[float, float]
    step_s: tuple[float, float]
    ring_s: float
    usd_per_billion_units: tuple[float, float] | None
    from_run_ids: tuple[str, ...]


class Scaled(NamedTuple):
    """The points of one workload, in the order of a table. notes: sources, and what is not shown, and why. hint: of
    other workloads. projected: by nodes, instance and mode. assumed: of them, in sentences.
    """

    workload: str
    points: tuple[Point, ...]
    notes: tuple[Mark, ...] = ()
    hint: str = ""
    projected: tuple[Projection, ...] = ()
    assumed: tuple[str, ...] = ()


def scaled(
    records: Sequence[Record],
    figures: Sequence[ThroughputRecord],
    workload: str | None,
    options: CompareOptions,
    catalog: Catalog,
    results_dir: Folders,
) -> Scaled:
    """Return what the records of the instances in `options` say, oldest first. workload: None for the one that most of
    them have, of those that of most sizes, then of most rows. Raises UsageError if not one point can be shown.
    """
    require_region(options.region, catalog, options.instances)
    wanted = options.wanted
    if (wanted.batch_size, wanted.optimizer, wanted.grad_accumulation) != (None, None, None):
        # Published throughput states none of these.
        figures = ()
    every, hidden = select(records, options.every, wanted), frozenset() if options.every else hidden_modes()
    every = [one for one in every if one.latest.what.mode not in hidden] or every
    ran = (one.latest for one in every if one.latest.status == "ok")
    sizes = [(record.what.workload, record.instance, record.what.world_size) for record in ran]
    sizes += [(figure.workload, figure.instance, point.world_size) for figure in figures for point in figure.points]
    there = {name: [(key, size) for of, key, size in sizes if of == name] for name, *_ in sizes}
    names = sorted({*there, *workloads()})
    if workload is not None and workload.partition(",")[0] not in names:
        raise unknown_name("workload", workload, names, "fp8bench list workloads")
    if not there or workload not in (None, *there):
        of = f" of {workload}" if workload else ""
        remedy = "Run `fp8bench run` there, or name another instance or workload"
        raise nothing_found(f"for {', '.join(options.instances)}{of}{wanted.words}", results_dir, remedy, RUN)
    chosen = workload or broadest_first(there)[0]
    has = {instance for instance, _ in there[chosen]}
    without = [key for key in options.instances if key not in has]
    others = sorted(there.keys() - {chosen}) if workload is None else []
    hint = of_several(chosen, others, without) if others else ""
    missing = f"no record of {chosen} for {', '.join(without)}"
    notes = [Mark(missing, Weight.OF_ALL)] if without and not others else []
    points, days = [], []
    for figure in (one for one in figures if one.workload == chosen):
        points += (made := _of_throughput(figure, catalog, options))
        of_day = figure.provenance and figure.provenance.published_on
        days += [of_day] if of_day else []
        said = f"{made[0].citation}{f' ({of_day})' if of_day else ''}{f': {figure.note}' if figure.note else ''}"
        notes.append(Mark(f"{figure.source}: {said}.", Weight.OF_ALL))
    if days and options.as_of is None:
        notes.append(Mark(f"at the prices of the source's day: --price-as-of {max(days)}", Weight.OF_ALL))
    for one in (one for one in every if one.latest.what.workload == chosen):
        if one.latest.status == "ok":
            points.append(_of_run(one, catalog, options))
        else:
            what = f"omitted: {one.latest.instance}:{one.latest.what.mode} is {one.latest.status}"
            notes.append(Mark(what, Weight.NOT_RUN))
    return Scaled(chosen, tuple(_compared(points)), tuple(dict.fromkeys(notes)), hint)


def _of_run(measurement: Measurement, catalog: Catalog, options: CompareOptions) -> Point:
    record, row = measurement.latest, to_row(measurement, catalog, options)
    known, instance = catalog.gpu_by_product(record.device_name), catalog.instances.get(record.instance)
    gpu = known.name if known else record.device_name or (instance.gpu if instance else None)
    rate, usd = row.throughput_ci_per_s, row.units_per_usd_ci
    return made_of(
        Point,
        record.provenance,
        row,
        gpu="CPU" if row.device == "cpu" else gpu or "unknown GPU",
        units_per_s_per_gpu=row.throughput_per_gpu_per_s or 0.0,
        units_per_s_per_gpu_ci=rate and (rate[0] / row.world_size, rate[1] / row.world_size),
        usd_per_billion_units=BILLION / row.units_per_usd if row.units_per_usd else None,
        usd_per_billion_units_ci=usd and (BILLION / usd[1], BILLION / usd[0]),
        work="" if options.allow_mismatch else json.dumps(record.fingerprint, sort_keys=True),
        estimate=row.times.by_elapsed if row.times else None,
    )


def _of_throughput(record: ThroughputRecord, catalog: Catalog, options: CompareOptions) -> list[Point]:
    instance, points = catalog.instances.get(record.instance), []
    for one in record.points:
        paid = priced(record, Used(one.world_size, one.nodes, on_gpu=True), catalog, options)
        usd, price = paid.usd_per_hour, paid.price
        values = {
            "gpu": (instance.gpu if instance else None) or "unknown GPU",
            "usd_per_hour": usd,
            "price_as_of": price and price.as_of,
            "price_source": price and price.source,
            "usd_per_billion_units": usd and usd / 3600 / (one.units_per_s_per_gpu * one.world_size) * BILLION,
            "run_ids": (record.run_id,),
            "marks": (record.source, *([] if usd else map(doubt, paid.told))),
        }
        points.append(made_of(Point, record.provenance, record, one, **values))
    return points


def _compared(points: Sequence[Point]) -> list[Point]:
    # By group and size, the reference first.
    in_order = sorted(points, key=lambda one: (*one.group, one.world_size, one.mode != REFERENCE, one.variant_label))
    # Of each series the first, and of each size's references the fastest; in a dict the last of a key counts.
    smallest_of = {one.series: one for one in reversed(in_order)}
    by_rate = sorted(reversed(in_order), key=lambda one: one.units_per_s_per_gpu)
    references = {(one.group, one.nodes, one.world_size): one for one in by_rate if one.mode == REFERENCE}
    found = []
    for one in in_order:
        smallest, model = smallest_of[one.series], references.get((one.group, one.nodes, one.world_size))
        marks = list[Mark]()
        update: dict[str, Any] = {"smallest_nodes": smallest.nodes, "smallest_world_size": smallest.world_size}
        if one is not smallest:
            update["share_of_smallest"], update["share_of_smallest_ci"] = _rate_ratio(one, smallest)
            gpus = smallest.nodes == 1 and smallest.source == "measured"
            name = workers(smallest.world_size, smallest.device) if gpus else counted(smallest.nodes, "node")
            marks += _unlike(one, smallest, name)
        if model is not None and model is not one and not one.emulated and not model.emulated:
            rate, ends = _rate_ratio(one, model)
            update |= {"faster_vs_reference": rate - 1, "faster_vs_reference_ci": ends and (ends[0] - 1, ends[1] - 1)}
            marks += [mark for mark in _unlike(one, model, model.short_label) if "machine" in mark]
            if one.final_loss is not None and model.final_loss is not None:
                update["final_loss_vs_reference"] = one.final_loss - model.final_loss
        found.append(one.model_copy(update={**update, "is_reference": model is one, "marks": (*marks, *one.marks)}))
    return found


def _rate_ratio(one: Point, other: Point) -> tuple[float, Interval | None]:
    # Without samples of both there is no interval.
    value = one.units_per_s_per_gpu / other.units_per_s_per_gpu
    if one.estimate is None or other.estimate is None or (held := ratio(one.estimate, other.estimate)).interval is None:
        return value, None
    return value, (value * held.value / held.interval[1], value * held.value / held.interval[0])


def _unlike(one: Point, other: Point, name: str) -> list[Mark]:
    if one.measurement is None or other.measurement is None:
        return []
    unlike = [key for key in differing(one.measurement.software, other.measurement.software) if key not in HARDWARE]
    said = [doubt(f"unlike {name} in {', '.join(unlike)}")] if unlike else []
    if not same_machine(one.measurement.machine, other.measurement.machine):
        differ = f"machines of one type differ by up to {BETWEEN_MACHINES * 100:.2g} %"
        said.append(doubt(f"on another machine than {name}: {differ}"))
    return said
