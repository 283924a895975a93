"""Predictions as a document: each of one profiled measurement for one target, with a range and all that it assumes. Not
a record: not kept, and in no comparison. Its range is the measured interval widened by the model's error on the
logarithmic scale; if no communication was measured, the lower end assumes that all of it is hidden.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.rounds import Mark, Weight, doubt
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.kinds.run.shown import name_of, notes
from fp8bench.predict.prediction import Source, Target, foresee
from fp8bench.predict.step import PEAKS, Known, ModelError, Part, Step
from fp8bench.pricing import cost
from fp8bench.profiling.causes import PARTS, SMALLEST_S
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import Interval, rate, with_interval

OF_ROW = (
    *("reason", "instance", "world_size", "mode", "recipe", "execution", "attention", "workload", "batch_size"),
    *("step_time_s", "throughput_per_s", "usd_per_hour", "price_as_of", "price_source", "price_share_of"),
    *("units_per_usd", "usd_per_million_units"),
)
"""What `predict --format json` has of a row: SI units; null means unknown. usd_per_hour: the price of the GPUs that are
used, which is price_share of the price of the instance price_share_of (null: the complete target instance).
"""

MEASURED = (
    *("instance", "world_size", "step_time_s", "step_time_ci_s", "throughput_per_s", "usd_per_hour", "units_per_usd"),
    "run_ids",
)
"""What it has of the measurement that a prediction is based on. units_per_usd: at the price of the same day."""


class Prediction(NamedTuple):
    """A prediction. row, measured: of a comparison, with prices. A range is not a 95 % interval: see `ModelError`."""

    row: Row
    measured: Row
    source: Source
    target: Target
    step: Step
    error: ModelError | None

    @property
    def origin(self) -> str:
        """The machine that was measured, e.g. `2 x H100-SXM5-80GB of h100-2x`."""
        return f"{self.source.machine.gpus} x {self.source.machine.gpu.name} of {self.measured.instance}"

    @property
    def step_range_s(self) -> Interval | None:
        if self.error is None:
            return None
        measured_s, off = self.source.work.step_s, math.exp(self.error.value)
        low, high = self.measured.step_time_ci_s or (measured_s, measured_s)
        return self.step.least_s * low / measured_s / off, self.step.step_s * high / measured_s * off

    def range_of(self, rate: float | None) -> Interval | None:
        """Return the range of what is the more the shorter a step."""
        step_s = self.row.step_time_s
        return cost.rate_interval(rate, step_s, self.step_range_s) if rate and step_s else None

    @property
    def break_even_usd_per_hour(self) -> float | None:
        """The price at which a dollar buys as much as on the measured machine."""
        rate, per_usd = self.row.throughput_per_s, self.measured.units_per_usd
        return cost.break_even_usd_per_hour(rate, per_usd) if rate and per_usd else None

    def as_json(self, warnings: Sequence[str] = ()) -> dict[str, Any]:
        """Return what `predict --format json` has. gemm_share_of_peak: as measured. assumed, warnings: sentences, also
        those of all predictions.
        """
        row, origin, even = self.row, self.source, self.break_even_usd_per_hour
        measured = self.measured.model_dump(mode="json", include={*MEASURED})
        return row.model_dump(mode="json", include={*OF_ROW}) | {
            "source": "predicted",
            "status": row.status if row.reason else "predicted",
            "gpu": self.target[1].gpu.name,
            "unit": self.measured.unit,
            "step_time_range_s": self.step_range_s,
            "throughput_range_per_s": self.range_of(row.throughput_per_s),
            "price_share": row.price_share or row.world_size / self.target[0].gpu_count,
            "units_per_usd_range": self.range_of(row.units_per_usd),
            "break_even_usd_per_hour": even,
            "break_even_range_usd_per_hour": self.range_of(even),
            "gemm_share_of_peak": None if row.reason else _share_of_peak(origin),
            "measured": measured | {"gpu": origin.machine.gpu.name, "run_id": origin.record.run_id},
            "model_error": self.error and self.error.model_dump(mode="json"),
            "parts": [part.model_dump(mode="json") for part in self.step.parts],
            "assumed": self.step.assumed,
            "warnings": (*row.measurement.doubts, *warnings),
        }


def _share_of_peak(source: Source) -> float | None:
    (_, gpus), summary = source.machine, source.record.summary
    flops = summary and summary.flops_per_step
    gemms_s = {PEAKS[kind]: of_kind for kind, of_kind in source.work.by_category.items() if kind in PEAKS and of_kind}
    with suppress(UsageError):
        capacity = sum(of_kind * source.machine.figure(peak) for peak, of_kind in gemms_s.items()) * 1e12
        return flops / gpus / capacity if flops and capacity else None
    return None


def predictions(
    sources: Sequence[Source], target: Target, known: Known, catalog: Catalog, options: CompareOptions
) -> tuple[list[Prediction], list[str]]:
    """Return the predictions of each source by what a dollar buys, those that cannot run last, and warnings of all of
    them. options: for the prices of both machines. Raises UsageError if the target is the machine that was measured,
    or if the catalogue lacks a figure.
    """
    instance, (_, gpus) = target
    there = [one for one in sources if (one.record.instance, one.machine.gpus) != (instance.key, gpus)]
    if not there:
        measured = f"{instance.key} itself was measured on {gpus} GPU{'' if gpus == 1 else 's'}"
        raise UsageError(measured, f"See it with `fp8bench compare {instance.key}`")
    rows = []
    for source in there:
        measurement, step, error = foresee(source, target, known)
        row = to_row(measurement, catalog, options._replace(any_machine=True))
        measured_row = to_row(source.row.measurement, catalog, options)
        rows.append(Prediction(row, measured_row, source, target, step, error))
    rows.sort(key=lambda one: (one.row.reason is not None, -(one.row.units_per_usd or one.row.throughput_per_s or 0.0)))
    said, paid = [], rows[0].row.priced
    fewer = {one.source.machine.gpus for one in rows if one.step.parts and one.source.machine.gpus < gpus}
    if fewer and gpus > known.most_gpus:
        sizes = " and ".join(map(str, sorted(fewer)))
        said.append(f"{gpus} GPUs are predicted from {sizes}: the model was tested on up to {known.most_gpus}")
    if paid.gpus and paid.share_of != instance.key:
        share = "{} of {} GPUs of {}".format(*paid.gpus, paid.share_of)
        said.append(f"no price of {instance.key} is known: {share} stand in for it")
    for key, used in {one.instance: one.priced for each in rows for one in each[:2]}.items():
        if used.price is None or used.price.purchase != options.purchase:
            said += [f"{key}: {text}" for text in used.told]
    return rows, said


SOFTWARE = "software, the kernels that it chooses, and clocks under the power limit are as measured"

OF_A_STEP: tuple[Column[Part], ...] = (
    word("part of a step", lambda part: "idle" if part.name == "idle" else PARTS[part.name]),
    Column("measured", lambda part: part.measured_s, ".1f", unit="ms", scale=1e3),
    Column("predicted", lambda part: part.predicted_s, ".1f", unit="ms", scale=1e3),
    Column("factor", lambda part: part.ratio, ".2f"),
    word("by", lambda part: part.rule),
)


def document(rows: Sequence[Prediction], warnings: Sequence[str], omitted: Sequence[str] = ()) -> doc.Document:
    """Return the predictions as a document. Its data has the warnings of all of them in each."""
    best, measured, _, (_, machine), of_best, _ = rows[0]
    unit, origins, every = measured.unit, dict.fromkeys(one.origin for one in rows), [one.row for one in rows]

    def step(one: Prediction) -> str:
        row, form = one.row, ".0f" if (one.row.step_time_s or 0.0) >= 0.1 else ".1f"
        return row.status if row.reason else with_interval(row.step_time_s, one.step_range_s, form, scale=1e3)

    def per_usd(one: Prediction) -> str:
        value = one.row.units_per_usd
        return with_interval(value, one.range_of(value), _rounded, scale=1e-3)

    columns: tuple[Column[Prediction], ...] = (
        word("predicted mode", lambda one: name_of(one.row, every)),
        *([word("from", lambda one: one.origin)] if len(origins) > 1 else []),
        Column("batch", lambda one: one.row.batch_size, "d"),
        Column("step, ms (range)", step, str),
        Column(f"{unit}/s", lambda one: one.row.throughput_per_s, _rounded),
        Column(f"1,000 {unit}/USD (range)", per_usd, str),
    )
    table = table_of(columns, rows, emphasis=lambda one: "faint" if one.row.reason else "", whole=True)
    marks = [(Mark(row.reason, Weight.NOT_RUN), row) for row in every if row.reason]
    marks += [(doubt(text), row) for row in every for text in row.measurement.doubts]
    there = f"{best.world_size} x {machine.gpu.name} of {best.instance}"
    lead = (
        f"Predicted for {there} from what was measured on {' and '.join(origins)}. None of this ran on {best.instance}."
    )
    blocks: list[list[doc.Part]] = [[doc.Sentence(lead)], [table, *map(doc.Note, notes(every, marks, (), every=True))]]
    if not best.reason:
        if measured.units_per_usd and (even_usd := rows[0].break_even_usd_per_hour):
            even = with_interval(even_usd, rows[0].range_of(even_usd), ",.2f")
            paid = (
                best.usd_per_hour
                and f", where they cost {best.usd_per_hour:,.2f} (price of {best.price_as_of or 'no known day'})"
            )
            said = (
                f"{name_of(best, every)} at batch {best.batch_size} was measured at {rate(measured.units_per_usd)} "
                f"{unit} for a dollar on {measured.instance} ({measured.usd_per_hour:,.2f} USD/h). A dollar buys as "
                f"many on {there} at {even} USD/h{paid or ''}."
            )
            blocks.append([doc.Sentence(said)])
        parts = [part for part in of_best.parts if max(part.measured_s, part.predicted_s) >= SMALLEST_S]
        of = table_of(OF_A_STEP, parts, whole=True)
        blocks += [
            [doc.Heading(f"A step of {name_of(best, every)}, batch {best.batch_size} a GPU"), of],
            [doc.Heading("Assumed"), *map(doc.Note, (*of_best.assumed, SOFTWARE))],
        ]
    aside = list(omitted)
    for error in dict.fromkeys(one.error for one in rows if one.error):
        worst = " and ".join(f"{one.target} from {one.source}, {one.error * 100:+.1f} %" for one in error.worst)
        tested = f", the most in {error.cases} predictions of what was measured: {worst}" if error.cases else ""
        text = (
            f"A range is the measured 95 % interval, widened by {error.share * 100:.0f} % to either side, the model's "
            f"error ({error.basis}{tested}). Few machines are known, so a range is not a 95 % interval."
        )
        aside.insert(0, text)
    blocks.append([*map(doc.Note, aside), *map(doc.Warned, warnings)])
    data = [one.as_json(warnings) for one in rows]
    lines = doc.CsvLines(tuple(data[0]), tuple(tuple(one.values()) for one in data))
    return doc.Document(doc.blocks(*blocks), data=data, lines=lines)


def _rounded(value: float) -> str:
    # Without digits that a range of several per cent makes meaningless.
    return rate(float(f"{value:.3g}"))
