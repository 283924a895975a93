"""Predictions as a document."""

from functools import partial

from fp8bench.predict.prediction import Measured, Prediction, Predictions
from fp8bench.predict.step import ModelError
from fp8bench.profiling.facts import PARTS
from fp8bench.tables import document as doc
from fp8bench.tables.written import number, rate, with_interval

SOFTWARE = "software, the kernels that it chooses, and clocks under the power limit are as measured"

SMALLEST_S = 0.5e-4
"""Half of the last digit that is shown: a part below it is omitted."""


def document(found: Predictions) -> doc.Document:
    """Return the predictions as a document. Its data has all their fields, with the common warnings added."""
    rows, letters = found.rows, doc.Letters()
    ran = [row for row in rows if row.status == "predicted"]
    common = [text for text in (ran[0].assumed if ran else ()) if all(text in row.assumed for row in ran)]
    units = {row.unit for row in rows}
    unit = units.pop() if len(units) == 1 else "units"

    def notes(row: Prediction) -> str:
        own = [row.reason] if row.reason else [*row.warnings, *(text for text in row.assumed if text not in common)]
        return " ".join(f"[{letters.of(text)}]" for text in own)

    def step(row: Prediction) -> str:
        form = ".0f" if (row.step_time_s or 0.0) >= 0.1 else ".1f"
        return row.status if row.reason else with_interval(row.step_time_s, row.step_time_range_s, form, scale=1e3)

    column = partial(doc.column, rows)
    origin = column("from", lambda row: f"{row.measured.world_size} x {row.measured.instance}", "word")
    columns = (
        column("predicted mode", lambda row: row.variant_label, "word"),
        *([origin] if len({*origin.texts}) > 1 else []),
        column("batch x GPUs", lambda row: f"{row.batch_size} x {row.world_size}"),
        column("step, ms (range)", step, "interval"),
        column(f"{unit}/s", lambda row: rate(_rounded(row.throughput_per_s))),
        column(f"{unit}/USD (range)", _per_usd, "interval"),
        column("notes", notes, "note"),
    )
    table = doc.Table(columns, naming=1, emphasis=tuple("faint" if row.reason else "" for row in rows))
    origins = dict.fromkeys(f"{_gpus(row.measured)} of {row.measured.instance}" for row in rows)
    lead = (
        f"Predicted for {_gpus(rows[0])} of {rows[0].instance} from what was measured on {' and '.join(origins)}. "
        f"None of this ran on {rows[0].instance}."
    )
    blocks: list[list[doc.Part]] = [[doc.Sentence(lead)], [table, *map(doc.Note, letters.lines())]]
    aside = found.omitted
    if ran:
        best, errors = ran[0], dict.fromkeys(row.model_error for row in ran if row.model_error)
        blocks += [
            [*map(doc.Sentence, _answers(best))],
            [doc.Heading(f"A step of {best.variant_label}, batch {best.batch_size} a GPU"), _parts(best)],
            [doc.Heading("Assumed"), *map(doc.Note, (*common, SOFTWARE))],
        ]
        aside = (*map(_about_range, errors), *aside)
    blocks.append([*map(doc.Note, aside), *map(doc.Warned, found.warnings)])
    warned = [row.model_copy(update={"warnings": (*row.warnings, *found.warnings)}) for row in rows]
    return doc.Document(doc.blocks(*blocks), data=warned, lines=doc.CsvLines.of(Prediction, warned))


def _per_usd(row: Prediction) -> str:
    low, high = map(_rounded, row.units_per_usd_range or (None, None))
    form = ",.0f" if (row.units_per_usd or 0.0) >= 100 else ".3g"
    return with_interval(_rounded(row.units_per_usd), None if low is None or high is None else (low, high), form)


def _rounded(value: float | None) -> float | None:
    # Without digits that a range of several per cent makes meaningless.
    return None if value is None else float(f"{value:.3g}")


def _gpus(row: Prediction | Measured) -> str:
    return f"{row.world_size} {row.gpu}"


def _answers(best: Prediction) -> list[str]:
    measured, said = best.measured, []
    if best.usd_per_hour is not None:
        dated = f"price of {best.price_as_of}" if best.price_as_of else "a price without a date"
        of = f", {best.price_share:.3g} of {best.price_share_of}'s" if best.price_share_of else ""
        said.append(
            f"{best.variant_label} at batch {best.batch_size} is predicted to buy {_per_usd(best)} {best.unit} for a "
            f"dollar on {best.instance}, at {best.usd_per_hour:,.2f} USD/h ({dated}{of})."
        )
    if measured.units_per_usd and best.break_even_usd_per_hour and measured.usd_per_hour:
        even = with_interval(best.break_even_usd_per_hour, best.break_even_range_usd_per_hour, ",.2f")
        said.append(
            f"It was measured at {rate(measured.units_per_usd)} {best.unit} for a dollar on {measured.instance} "
            f"({measured.usd_per_hour:,.2f} USD/h). A dollar buys as many on {best.instance} at {even} USD/h for "
            f"{_gpus(best)}."
        )
    return said


def _parts(row: Prediction) -> doc.Table:
    parts = [part for part in row.parts if max(part.measured_s, part.predicted_s) >= SMALLEST_S]
    column = partial(doc.column, parts)
    return doc.Table(
        (
            column("part of a step", lambda part: "idle" if part.name == "idle" else PARTS[part.name], "word"),
            column("measured", lambda part: number(part.measured_s, ".1f", 1e3), unit="ms"),
            column("predicted", lambda part: number(part.predicted_s, ".1f", 1e3), unit="ms"),
            column("factor", lambda part: number(part.ratio, ".2f")),
            column("by", lambda part: part.rule, "word"),
        )
    )


def _about_range(error: ModelError) -> str:
    if error.cases == 0:
        return "Ranges are the measured 95 % intervals: the GPUs are the same, and as many; machines may still differ."
    worst = " and ".join(f"{one.target} from {one.source}, {one.error * 100:+.1f} %" for one in error.worst)
    return (
        f"Ranges: the measured 95 % intervals, widened by {error.share * 100:.0f} % to either side: the most that the "
        f"model was off in {error.cases} predictions of what was measured ({error.basis}): {worst}. Few machines are "
        "known, so a range is not a 95 % interval."
    )
