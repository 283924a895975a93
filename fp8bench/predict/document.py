"""Predictions as a document."""

from collections.abc import Sequence

from fp8bench.predict.prediction import Prediction, Predictions
from fp8bench.predict.step import Part
from fp8bench.profiling.causes import PARTS, SMALLEST_S
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import Interval, rate, with_interval

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
    measured, unit = best.measured, best.unit

    def step(row: Prediction) -> str:
        form = ".0f" if (row.step_time_s or 0.0) >= 0.1 else ".1f"
        return row.status if row.reason else with_interval(row.step_time_s, row.step_time_range_s, form, scale=1e3)

    def notes(row: Prediction) -> str:
        return " ".join(f"[{letters.of(text)}]" for text in ([row.reason] if row.reason else row.warnings))

    columns: tuple[Column[Prediction], ...] = (
        word("predicted mode", lambda row: row.variant_label),
        *([word("from", _origin)] if len({*map(_origin, rows)}) > 1 else []),
        Column("batch x GPUs", lambda row: f"{row.batch_size} x {row.world_size}", str),
        Column("step, ms (range)", step, str, "interval"),
        Column(f"{unit}/s", lambda row: rate(_rounded(row.throughput_per_s)), str),
        Column(f"{unit}/USD (range)", lambda row: _range(row.units_per_usd, row.units_per_usd_range), str, "interval"),
        Column("notes", notes, kind="note"),
    )
    emphasis: tuple[doc.Emphasis, ...] = tuple("faint" if row.reason else "" for row in rows)
    table = doc.Table(tuple(column.cells(rows) for column in columns), emphasis=emphasis)
    origins, there = (
        " and ".join(dict.fromkeys(map(_origin, rows))),
        f"{best.world_size} x {best.gpu} of {best.instance}",
    )
    lead = f"Predicted for {there} from what was measured on {origins}. None of this ran on {best.instance}."
    blocks: list[list[doc.Part]] = [[doc.Sentence(lead)], [table, *map(doc.Note, letters.lines())]]
    aside = list(omitted)
    if best.status == "predicted":
        parts = [part for part in best.parts if max(part.measured_s, part.predicted_s) >= SMALLEST_S]
        of = doc.Table(tuple(column.cells(parts) for column in OF_A_STEP))
        blocks += [
            [doc.Heading(f"A step of {best.variant_label}, batch {best.batch_size} a GPU"), of],
            [doc.Heading("Assumed"), *map(doc.Note, (*best.assumed, SOFTWARE))],
        ]
        if measured.units_per_usd and best.break_even_usd_per_hour:
            even = with_interval(best.break_even_usd_per_hour, best.break_even_range_usd_per_hour, ",.2f")
            paid = best.usd_per_hour and f", where they cost {best.usd_per_hour:,.2f} (price of {best.price_as_of})"
            said = (
                f"{best.variant_label} at batch {best.batch_size} was measured at {rate(measured.units_per_usd)} "
                f"{unit} for a dollar on {measured.instance} ({measured.usd_per_hour:,.2f} USD/h). A dollar buys as "
                f"many on {there} at {even} USD/h{paid or ''}."
            )
            blocks.insert(2, [doc.Sentence(said)])
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


def _origin(row: Prediction) -> str:
    return f"{row.measured.world_size} x {row.measured.gpu} of {row.measured.instance}"


def _range(value: float | None, ends: Interval | None) -> str:
    low, high = map(_rounded, ends or (None, None))
    interval = (low, high) if low is not None and high is not None else None
    return with_interval(_rounded(value), interval, ",.0f" if (value or 0.0) >= 100 else ".3g")


def _rounded(value: float | None) -> float | None:
    # Without digits that a range of several per cent makes meaningless.
    return None if value is None else float(f"{value:.3g}")
