"""GEMMs as a document: one record, or records of the same work side by side.

The data has each record by itself, unrounded, so that programs can compare them as they like.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fp8bench.kinds.gemm import figure, formats_table
from fp8bench.kinds.gemm.compared import GemmComparison, ProductRow, Reading, StepRow, compare_products
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.gemm.rows import CAST_WAYS, BreakEven, GemmReport, GemmRow, WithCasts, gemm_report
from fp8bench.records.select import same_work
from fp8bench.schema.gemm import Casts, StepBound
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.side_by_side import differences_line, reasons, said_by
from fp8bench.tables.written import counted, number, rate, ratio, with_interval

SAID: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
UNLIKE = 0.1
"""The relative difference between a profile's GEMMs and those timed here from which a reader is warned."""

METHOD = (
    "Times are {medians}, all of this one process, {cache}; two of them are called different where their 95 % "
    "intervals have nothing in common (a `?` marks those that overlap). {casts}"
)
CASTS = "Eager casts are torch operations one by one: a fused cast is cheaper."
EMULATED = "fp8 is emulated on this device: its times are not those of fp8, so no speed-up is shown."
WAYS: dict[Casts, str] = {"none": "free", "compiled": "compiled", "eager": "eager"}
TONES: dict[str | None, doc.Tone] = {"faster": "good", "slower": "bad"}
DIGITS = 4
"""Digits of a time that is shown side by side; its interval has the same precision. The data has all digits."""

PICTURE = "products"
CONVENTION = "M x N x K: rows, output features, inner"
STEP_TITLE = "All GEMMs of a step, each as often as a step makes it:"
STEP_METHOD = "A step's interval goes from the sum of its GEMMs' lower ends to that of their upper ones."
CASTS_METHOD = f"TFLOP/s count a GEMM's operations over the whole time, casts too. {CASTS}"
COMPARED_METHOD = (
    "ratio: the time of {first} over this one's, so above 1 this one is faster than {first}; a `?`: their "
    "intervals overlap. Times are of one process each, {cache}."
)
COMPARED_EMULATED = "fp8 is emulated on {who}: such times are not those of fp8, and have no ratio."


def document(records: Sequence[GemmRecord], catalog: Catalog) -> doc.Document:
    """Return the document. records: in the order of the columns. The figure is only drawn for one record."""
    reports = [gemm_report(record, catalog) for record in records]
    shown: list[tuple[doc.Part, ...]] = []
    for group in same_work(records):
        if len(group) > 1:
            shown += _compared(compare_products(group, catalog))
        else:
            report = gemm_report(group[0], catalog)
            shown += alone(report, f"{report.instance}: " if len(records) > 1 else "")
    figures = [doc.Figure(PICTURE, partial(figure.draw, report)) for report in reports if len(reports) == 1]
    return doc.Document(tuple(shown), data=reports, lines=_lines(reports), figures=tuple(figures))


def _lines(reports: Sequence[GemmReport]) -> doc.CsvLines:
    """Return a line for each GEMM, precision and record: every field of `GemmRow`, and the record's warnings."""
    flat = [name for name in GemmRow.model_fields if name != "with_casts"]
    of_casts = [name for name in WithCasts.model_fields if name != "casts"]
    ways = CAST_WAYS[1:]
    rows = (
        (
            *(getattr(row, name) for name in flat),
            *(getattr(row.way(way), name, None) for way in ways for name in of_casts),
            report.warnings,
        )
        for report in reports
        for row in report.rows
    )
    fields = (*flat, *(f"{way}_casts_{name}" for way in ways for name in of_casts), "warnings")
    return doc.CsvLines(fields, tuple(rows))


def alone(report: GemmReport, whose: str = "") -> tuple[tuple[doc.Part, ...], ...]:
    """Return the blocks of a single record. whose: a prefix for each of its warnings."""
    where = f"{report.instance} ({report.device_name or 'CPU'})"
    if formats_table.names_formats(report.rows):
        return _in_formats(report, where, whose)
    emphasis: tuple[doc.Emphasis, ...] = tuple("" if row.status == "ok" else "faint" for row in report.rows)
    shown = columns(report)
    naming = [column.heading for column in shown].index("precision") + 1
    return doc.blocks(
        [doc.Heading(_title(report, where))],
        [doc.Table(tuple(shown), naming, emphasis=emphasis)],
        [*map(doc.Sentence, sentences(report)), *(doc.Warned(f"{whose}{warning}") for warning in report.warnings)],
    )


def _in_formats(report: GemmReport, where: str, whose: str) -> tuple[tuple[doc.Part, ...], ...]:
    """Return the blocks of a record with named formats. The shape is in its heading if there is only one."""
    letters = doc.Letters(row.reason for row in report.rows if row.reason is not None)
    shapes = list(dict.fromkeys(row.shape for row in report.rows))
    title = _title(report, where) + (f"; {shapes[0]}" if len(shapes) == 1 else "")
    return doc.blocks(
        [doc.Heading(title), formats_table.table(report.rows, letters)],
        [*map(doc.Note, letters.lines())],
        [
            *map(doc.Sentence, sentences(report)),
            *map(doc.Sentence, formats_table.notes(report.rows)),
            *(doc.Warned(f"{whose}{warning}") for warning in report.warnings),
        ],
    )


def _title(report: GemmReport, where: str) -> str:
    return f"{report.what}, on {where}; {CONVENTION}"


def columns(report: GemmReport) -> list[doc.Cells]:
    """Return the columns that say something for this record, beginning with those that name a row."""
    rows = report.rows
    column = doc.Rows(rows).column
    shown = [
        column("GEMM", lambda r: r.product, "word", once=True),
        column("M x N x K", lambda r: r.shape, once=True),
        column("precision", lambda r: r.precision, "word"),
    ]
    if all(row.product == row.shape for row in rows):
        del shown[0]
    if report.workload:
        shown.append(column("calls", lambda r: number(r.calls_per_step, "d"), once=True))
        shown.append(column("ms a step", lambda r: number(r.time_per_step_s, ".2f", 1e3)))
    shown += [
        column("us (95 % interval)", _microseconds, "interval"),
        column("TFLOP/s", lambda r: rate(r.tflops)),
        column("of ceiling", lambda r: number(r.share_of_ceiling, ".0f", 100, " %")),
        column("of peak", lambda r: number(r.share_of_peak, ".0f", 100, " %")),
        column("speed-up", _speedup),
    ]
    for casts in CAST_WAYS[1:]:
        ways = [row.way(casts) for row in rows]
        if any(ways):
            shown.append(doc.Rows(ways).column(f"us {SAID[casts]}", _microseconds, "interval"))
            shown.append(doc.Rows(ways).column(f"speed-up {SAID[casts]}", _speedup))
    return [*shown, column("notes", _notes, "note")]


def _microseconds(timed: GemmRow | WithCasts | None) -> str:
    return with_interval(timed.time_s, timed.time_ci_s, ",.1f", 1e6) if timed else doc.NOTHING


def _speedup(timed: GemmRow | WithCasts | None) -> str:
    return ratio(timed.speedup_vs_bf16, timed.verdict) if timed else doc.NOTHING


def _notes(row: GemmRow) -> str:
    notes = ["emulated"] if row.emulated else []
    if row.status != "ok":
        notes.append(f"{row.status}: {row.reason}")
    notes += [f"{SAID[one.casts]} {one.status}: {one.reason}" for one in row.with_casts if one.status != "ok"]
    return "; ".join(notes)


def _compared(compared: GemmComparison) -> tuple[tuple[doc.Part, ...], ...]:
    named = list(zip(compared.labels, compared.reports, strict=True))
    where = ", ".join(f"{label} ({report.device_name or 'CPU'})" for label, report in named)
    letters = doc.Letters(reasons(compared.rows))
    return doc.blocks(
        [doc.Heading(_title(compared.reports[0], where))],
        [_products(compared, letters)],
        [*map(doc.Note, letters.lines())],
        [doc.Heading(STEP_TITLE)] if compared.steps else [],
        [_steps(compared)] if compared.steps else [],
        [
            *map(doc.Sentence, compared_sentences(compared)),
            *(doc.Warned(f"{label}: {warning}") for label, report in named for warning in report.warnings),
        ],
    )


def _products(compared: GemmComparison, letters: doc.Letters) -> doc.Table:
    """Show a row for each GEMM, precision and way of casting. letters: refer to why something was not timed."""
    rows = compared.rows
    column = doc.Rows(rows).column
    named = [
        column("GEMM", lambda row: row.product, "word", once=True),
        column("M x N x K", lambda row: str(row.shape), once=True),
    ]
    if all(row.product == str(row.shape) for row in rows):
        del named[0]

    def microseconds(reading: Reading) -> str:
        return _time(reading, 1e6) if reading.reason is None else letters.refer(reading.status, reading.reason)

    readings = _readings(rows, compared.labels, "us (95 % interval)", microseconds)
    return doc.Table((*named, *_ways(rows), *readings), len(named) + 2)


def _steps(compared: GemmComparison) -> doc.Table:
    """Show a row for each precision and way of casting, in milliseconds a step."""
    rows = compared.steps
    readings = _readings(rows, compared.labels, "ms a step (interval)", lambda reading: _time(reading, 1e3))
    return doc.Table((*_ways(rows), *readings), 2)


def _ways(rows: Sequence[ProductRow | StepRow]) -> tuple[doc.Cells, ...]:
    column = doc.Rows(rows).column
    return (
        column("precision", lambda row: row.precision, "word", once=True),
        column("casts", lambda row: WAYS[row.casts], "word"),
    )


def _readings(
    rows: Sequence[ProductRow | StepRow], labels: Sequence[str], quantity: str, write: Callable[[Reading], str]
) -> list[doc.Cells]:
    """Return times with their ratios, then TFLOP/s, so that times and ratios stay together if a table is split."""
    columns, rates = [], []
    for place, label in enumerate(labels):
        column = doc.Rows([row.readings[place] for row in rows]).column
        columns.append(column(quantity, write, "interval", of=label))
        if place:
            columns.append(column("ratio", lambda one: ratio(one.ratio, one.verdict), tone=_tone, of=label))
        rates.append(column("TFLOP/s", lambda one: rate(one.tflops), of=label))
    return [*columns, *rates]


def _tone(reading: Reading) -> doc.Tone:
    return TONES.get(reading.verdict, "")


def _time(reading: Reading, scale: float) -> str:
    """Write DIGITS digits of the time, and its interval with the same precision."""
    before_point = len(str(int((reading.time_s or 0.0) * scale)))
    return with_interval(reading.time_s, reading.time_ci_s, f",.{max(0, DIGITS - before_point)}f", scale)


def compared_sentences(compared: GemmComparison) -> list[str]:
    """Return lines about how the machines differ, what each was found to give, and how to read the tables."""
    said = [
        *differences_line(compared.differences, compared.labels),
        *said_by(compared.labels, [own_sentences(report) for report in compared.reports]),
    ]
    if compared.emulated:
        said.append(COMPARED_EMULATED.format(who=", ".join(compared.emulated)))
    said.append(COMPARED_METHOD.format(first=compared.labels[0], cache=cache(compared.reports[0])))
    if compared.steps:
        said.append(STEP_METHOD)
    if any(row.casts != "none" for row in compared.rows):
        said.append(CASTS_METHOD)
    return said


def sentences(report: GemmReport) -> list[str]:
    emulated = [EMULATED] if any(row.emulated for row in report.rows) else []
    casts = CASTS if any(row.with_casts for row in report.rows) else ""
    method = METHOD.format(medians=medians(report), cache=cache(report), casts=casts).rstrip()
    return [*own_sentences(report), *emulated, method]


def own_sentences(report: GemmReport) -> list[str]:
    """Return the findings: ceilings, the size from which fp8 pays, and how much fp8 can give a step."""
    said = [*_ceilings(report), *_break_even(report.break_even)]
    return [*said, *(line for one in report.bounds for line in _bound(one, report))]


def medians(report: GemmReport) -> str:
    """Say what a time is."""
    return "medians" if report.rounds == 1 else f"means of the medians of up to {report.rounds} rounds"


def cache(report: GemmReport) -> str:
    """Say whether the caches were cold or warm."""
    return "from a cold cache" if report.cold_cache else "with warm caches"


def _ceilings(report: GemmReport) -> Iterable[str]:
    if report.ceilings:
        shapes = [f"a cube of {c.shape.m}" if c.shape.is_square else str(c.shape) for c in report.ceilings]
        found = [
            f"{c.arithmetic} {rate(c.tflops)} TFLOP/s ({of})" for c, of in zip(report.ceilings, shapes, strict=True)
        ]
        yield f"Measured ceilings, the fastest GEMMs seen: {', '.join(found)}."
    peaks = (("bf16", report.peak_bf16_tflops), ("fp8", report.peak_fp8_tflops))
    known = [f"{name} {peak:,.0f} TFLOP/s" for name, peak in peaks if peak is not None]
    if known:
        yield f"Datasheet's peaks, dense: {', '.join(known)}."


def _break_even(found: Sequence[BreakEven]) -> Iterable[str]:
    """Yield one line for each precision."""
    for precision in dict.fromkeys(one.precision for one in found):
        ways = {one.casts: one for one in found if one.precision == precision}
        said = [f"{_from_size(ways[way].size)} ({SAID[way]})" for way in CAST_WAYS if way in ways]
        largest = max(max(one.sizes) for one in ways.values())
        yield f"{precision} is faster than bf16 {', '.join(said)}; cubes were measured up to {largest}."


def _from_size(size: int | None) -> str:
    return "at no size" if size is None else f"from {size} x {size} x {size} on"


def _bound(one: StepBound, report: GemmReport) -> Iterable[str]:
    gains = ", ".join(f"{gain.speedup:.2f}x ({SAID[gain.casts]})" for gain in one.at_most)
    if one.step_time_s is None:
        yield (
            f"fp8 makes the GEMMs of the converted layers {gains} as fast; no baseline-bf16 run of "
            f"{report.workload} at batch {report.batch_size} on one GPU is kept for {report.instance}, so what that "
            "gives a whole step is not known: less, since nothing else of it gains."
        )
    else:
        yield from _bound_of_step(one, gains)
    if one.left_in_bf16:
        yield f"{one.left_in_bf16} GEMMs have no valid fp8 time, and count as bf16 here."


def _bound_of_step(one: StepBound, gains: str) -> Iterable[str]:
    setting = one.execution or ("compiled" if one.compiled else "eager")
    step = f"{(one.step_time_s or 0) * 1e3:.1f} ms (baseline-bf16, {setting}, {counted(one.rounds or 0, 'round')})"
    products = f"{one.bf16_products_s * 1e3:.1f} ms of GEMMs that fp8 modes convert"
    if one.reason is not None:
        yield f"A step takes {step} and has {products}: no bound, since {one.reason}."
        return
    yield f"A step takes {step} and has {products}: fp8 can give it at most {gains}."
    for mode in one.modes:
        beyond = bool(one.at_most) and mode.speedup > max(gain.speedup for gain in one.at_most)
        more = ", more than its GEMMs can: the mode replaces other parts too" if beyond else ""
        setting = mode.execution or ("compiled" if mode.compiled else "eager")
        limit = f", and is {mode.held_back_by}" if mode.held_back_by else ""
        yield f"{mode.label} ({setting}) gives {mode.speedup:.2f}x ({mode.step_time_s * 1e3:.1f} ms){more}{limit}."
    alone = one.bf16_products_s + one.other_products_s
    if one.profiled_products_s and abs(alone / one.profiled_products_s - 1) > UNLIKE:
        yield (
            f"In the step's profile all GEMMs take {one.profiled_products_s * 1e3:.1f} ms, and timed alone those of "
            f"the linear layers take {alone * 1e3:.1f}: the bound is only as good as that."
        )
