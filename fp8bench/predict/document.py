"""Predictions as a document: each of one profiled measurement for one target, with a range and all that it assumes. Not
a record: not kept, and in no comparison. Its range is the measured interval widened by the model's error on the
logarithmic scale; if no communication was measured, the lower end assumes that all of it is hidden.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Literal, NamedTuple

from fp8bench.kinds.kind import Labelled
from fp8bench.predict.prediction import Source, Target, doubts, unsupported
from fp8bench.predict.step import PEAKS, Known, ModelError, Part, model_error, predict
from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, of_used, why_no_price
from fp8bench.profiling.causes import PARTS, SMALLEST_S
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import Interval, rate, with_interval


class Measured(Frozen):
    """The measurement that a prediction is based on. units_per_usd: at the price of the same day; null without one."""

    instance: str
    gpu: str
    world_size: int
    step_time_s: float
    step_time_ci_s: Interval | None
    throughput_per_s: float
    usd_per_hour: float | None
    units_per_usd: float | None
    run_id: str
    run_ids: tuple[str, ...]


class Prediction(Labelled, Frozen):
    """A prediction in SI units; the names are the keys of `predict --format json`. Null means unknown. A range is not a
    95 % interval: see `ModelError`. usd_per_hour: the price of the GPUs that are used, which is price_share of the
    price of the instance price_share_of (null: the complete target instance). break_even_usd_per_hour: the price at
    which a dollar buys as much as on the measured machine. gemm_share_of_peak: as measured. assumed, warnings:
    sentences.
    """

    source: Literal["predicted"] = "predicted"
    status: Literal["predicted", "unsupported"]
    reason: str | None = None
    instance: str
    gpu: str
    world_size: int
    mode: str
    recipe: str | None
    execution: Variant | None
    attention: str | None
    workload: str
    batch_size: int
    unit: str
    step_time_s: float | None = None
    step_time_range_s: Interval | None = None
    throughput_per_s: float | None = None
    throughput_range_per_s: Interval | None = None
    usd_per_hour: float | None
    price_as_of: date | None
    price_source: str | None
    price_share: float
    price_share_of: str | None = None
    units_per_usd: float | None = None
    units_per_usd_range: Interval | None = None
    usd_per_million_units: float | None = None
    break_even_usd_per_hour: float | None = None
    break_even_range_usd_per_hour: Interval | None = None
    gemm_share_of_peak: float | None = None
    measured: Measured
    model_error: ModelError | None = None
    parts: tuple[Part, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The machine that was measured, e.g. `2 x H100-SXM5-80GB of h100-2x`."""
        return f"{self.measured.world_size} x {self.measured.gpu} of {self.measured.instance}"


class Predictions(NamedTuple):
    """Predictions by what a dollar buys; those that cannot run are last. warnings: of all of them."""

    rows: tuple[Prediction, ...]
    warnings: tuple[str, ...]


def predictions(
    sources: Sequence[Source], target: Target, known: Known, catalog: Catalog, query: PriceQuery
) -> Predictions:
    """Return the predictions of each source. query: for the prices of both machines. Raises UsageError if the target is
    the machine that was measured, or if the catalogue lacks a figure.
    """
    instance, (gpu, gpus) = target
    there = [one for one in sources if (one.record.instance, one.machine.gpus) != (instance.key, gpus)]
    if not there:
        measured = f"{instance.key} itself was measured on {gpus} GPU{'' if gpus == 1 else 's'}"
        raise UsageError(measured, f"See it with `fp8bench compare {instance.key}`")
    rows = [_prediction(source, target, known, catalog, query) for source in there]
    rows.sort(key=lambda row: (row.status != "predicted", -(row.units_per_usd or row.throughput_per_s or 0.0)))
    said = []
    fewer = {row.measured.world_size for row in rows if row.status == "predicted" and row.measured.world_size < gpus}
    if fewer and gpus > known.most_gpus:
        sizes = " and ".join(map(str, sorted(fewer)))
        said.append(f"{gpus} GPUs are predicted from {sizes}: the model was tested on up to {known.most_gpus}")
    paid = of_used(instance, gpu.name, gpus, catalog, query)
    if paid is None:
        said.append(why_no_price(instance.key, instance, query))
    elif paid.instance != instance.key:
        said.append(f"no price of {instance.key} is known: {paid} stand in for it")
    return Predictions(tuple(rows), tuple(said))


def _prediction(source: Source, target: Target, known: Known, catalog: Catalog, query: PriceQuery) -> Prediction:
    record, work, row, (gpu, gpus), (instance, machine) = source.record, source.work, source.row, source.machine, target
    paid = of_used(instance, machine.gpu.name, machine.gpus, catalog, query)
    own = of_used(catalog.instances.get(row.instance), gpu.name, gpus, catalog, replace(query, machine=row.machine))
    as_many = cost.units_per_usd(row.throughput_per_s or 0.0, own.usd_per_hour) if own and own.usd_per_hour else None
    spent = {"usd_per_hour": own and own.usd_per_hour, "units_per_usd": as_many}
    about = partial(
        made_of,
        Prediction,
        record.what,
        instance=instance.key,
        gpu=machine.gpu.name,
        world_size=machine.gpus,
        execution=record.execution,
        attention=record.attention,
        unit=source.summary.unit,
        usd_per_hour=paid and paid.usd_per_hour,
        price_as_of=paid and paid.price.as_of,
        price_source=paid and paid.price.source,
        price_share=paid.share if paid else machine.gpus / instance.gpu_count,
        price_share_of=paid.instance if paid and (paid.share < 1 or paid.instance != instance.key) else None,
        measured=made_of(Measured, row, gpu=gpu.name, run_id=record.run_id, **spent),
    )
    if (why := unsupported(source, target)) is not None:
        return about(status="unsupported", reason=why)
    step = predict(work, source.machine, machine, known.limits)
    # No record of a GPU tells how fast another host is.
    error = None if work.host_bound else model_error(known, record.what.workload, source.machine, machine)
    # The value and, if the error is known, the slow and the fast end.
    steps_s = [step.step_s]
    if error is not None:
        low, high = row.step_time_ci_s or (work.step_s, work.step_s)
        off = math.exp(error.value)
        steps_s += [step.step_s * high / work.step_s * off, step.least_s * low / work.step_s / off]
    rates = [source.summary.units_per_step / gpus * machine.gpus / step_s for step_s in steps_s]
    per_usd = [cost.units_per_usd(rate, paid.usd_per_hour) for rate in rates] if paid and paid.usd_per_hour else []
    even = [cost.break_even_usd_per_hour(rate, as_many) for rate in rates] if as_many else []
    return about(
        status="predicted",
        step_time_s=step.step_s,
        step_time_range_s=steps_s[:0:-1] or None,
        throughput_per_s=rates[0],
        throughput_range_per_s=rates[1:] or None,
        units_per_usd=per_usd[0] if per_usd else None,
        units_per_usd_range=per_usd[1:] or None,
        usd_per_million_units=cost.usd_per_million_units(per_usd[0]) if per_usd else None,
        break_even_usd_per_hour=even[0] if even else None,
        break_even_range_usd_per_hour=even[1:] or None,
        gemm_share_of_peak=_share_of_peak(source),
        model_error=error,
        parts=step.parts,
        assumed=step.assumed,
        warnings=tuple(doubts(source, target, error, known)),
    )


def _share_of_peak(source: Source) -> float | None:
    (_, gpus), flops = source.machine, source.summary.flops_per_step
    gemms_s = {PEAKS[kind]: of_kind for kind, of_kind in source.work.by_category.items() if kind in PEAKS and of_kind}
    with suppress(UsageError):
        capacity = sum(of_kind * source.machine.figure(peak) for peak, of_kind in gemms_s.items()) * 1e12
        return flops / gpus / capacity if flops and capacity else None
    return None


SOFTWARE = "software, the kernels that it chooses, and clocks under the power limit are as measured"

OF_A_STEP: tuple[Column[Part], ...] = (
    word("part of a step", lambda part: "idle" if part.name == "idle" else PARTS[part.name]),
    Column("measured", lambda part: part.measured_s, ".1f", unit="ms", scale=1e3),
    Column("predicted", lambda part: part.predicted_s, ".1f", unit="ms", scale=1e3),
    Column("factor", lambda part: part.ratio, ".2f"),
    word("by", lambda part: part.rule),
)


def document(found: Predictions, omitted: Sequence[str] = ()) -> doc.Document:
    """Return the predictions as a document. Its data has all their fields, with the common warnings added."""
    rows, best, letters = found.rows, found.rows[0], doc.Letters()
    measured, unit, origins = best.measured, best.unit, dict.fromkeys(row.origin for row in rows)

    def step(row: Prediction) -> str:
        form = ".0f" if (row.step_time_s or 0.0) >= 0.1 else ".1f"
        return row.status if row.reason else with_interval(row.step_time_s, row.step_time_range_s, form, scale=1e3)

    def per_usd(row: Prediction) -> str:
        low, high = map(_rounded, row.units_per_usd_range or (None, None))
        ends = (low, high) if low is not None and high is not None else None
        return with_interval(_rounded(row.units_per_usd), ends, ",.0f" if (row.units_per_usd or 0.0) >= 100 else ".3g")

    def notes(row: Prediction) -> str:
        return " ".join(f"[{letters.of(text)}]" for text in ([row.reason] if row.reason else row.warnings))

    columns: tuple[Column[Prediction], ...] = (
        word("predicted mode", lambda row: row.variant_label),
        *([word("from", lambda row: row.origin)] if len(origins) > 1 else []),
        Column("batch x GPUs", lambda row: f"{row.batch_size} x {row.world_size}", str),
        Column("step, ms (range)", step, str, "interval"),
        Column(f"{unit}/s", lambda row: rate(_rounded(row.throughput_per_s)), str),
        Column(f"{unit}/USD (range)", per_usd, str, "interval"),
        Column("notes", notes, kind="note"),
    )
    emphasis: tuple[doc.Emphasis, ...] = tuple("faint" if row.reason else "" for row in rows)
    table = doc.Table(tuple(column.cells(rows) for column in columns), emphasis=emphasis)
    there = f"{best.world_size} x {best.gpu} of {best.instance}"
    lead = (
        f"Predicted for {there} from what was measured on {' and '.join(origins)}. None of this ran on {best.instance}."
    )
    blocks: list[list[doc.Part]] = [[doc.Sentence(lead)], [table, *map(doc.Note, letters.lines())]]
    if best.status == "predicted":
        if measured.units_per_usd and best.break_even_usd_per_hour:
            even = with_interval(best.break_even_usd_per_hour, best.break_even_range_usd_per_hour, ",.2f")
            paid = best.usd_per_hour and f", where they cost {best.usd_per_hour:,.2f} (price of {best.price_as_of})"
            said = (
                f"{best.variant_label} at batch {best.batch_size} was measured at {rate(measured.units_per_usd)} "
                f"{unit} for a dollar on {measured.instance} ({measured.usd_per_hour:,.2f} USD/h). A dollar buys as "
                f"many on {there} at {even} USD/h{paid or ''}."
            )
            blocks.append([doc.Sentence(said)])
        parts = [part for part in best.parts if max(part.measured_s, part.predicted_s) >= SMALLEST_S]
        of = doc.Table(tuple(column.cells(parts) for column in OF_A_STEP))
        blocks += [
            [doc.Heading(f"A step of {best.variant_label}, batch {best.batch_size} a GPU"), of],
            [doc.Heading("Assumed"), *map(doc.Note, (*best.assumed, SOFTWARE))],
        ]
    aside = list(omitted)
    for error in dict.fromkeys(row.model_error for row in rows if row.model_error):
        worst = " and ".join(f"{one.target} from {one.source}, {one.error * 100:+.1f} %" for one in error.worst)
        tested = f", the most in {error.cases} predictions of what was measured: {worst}" if error.cases else ""
        text = (
            f"A range is the measured 95 % interval, widened by {error.share * 100:.0f} % to either side, the model's "
            f"error ({error.basis}{tested}). Few machines are known, so a range is not a 95 % interval."
        )
        aside.insert(0, text)
    blocks.append([*map(doc.Note, aside), *map(doc.Warned, found.warnings)])
    warned = [row.model_copy(update={"warnings": (*row.warnings, *found.warnings)}) for row in rows]
    return doc.Document(doc.blocks(*blocks), data=warned, lines=doc.CsvLines.of(Prediction, warned))


def _rounded(value: float | None) -> float | None:
    # Without digits that a range of several per cent makes meaningless.
    return None if value is None else float(f"{value:.3g}")
