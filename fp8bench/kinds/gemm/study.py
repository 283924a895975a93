"""GEMMs as columns, sentences and a picture: a line for each GEMM, precision and way of casting, of one record or more.

A ratio is the first record's time over this one's: above 1, this record is faster; a `?` says that their intervals
overlap. For a workload, the GEMMs of a step are also summed, each as often as a step makes it. The interval of a sum
goes from the sum of the lower ends to that of the upper ones: wider than necessary if the errors are independent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.gemm.report import CAST_WAYS, GemmReport, GemmRow, WithCasts, gemm_report, judge, speedup
from fp8bench.schema.gemm import PRECISIONS, Casts, Precision, ProductTimings, StepBound, Timing
from fp8bench.tables import chart
from fp8bench.tables import document as doc
from fp8bench.tables.chart import INK
from fp8bench.tables.study import Column, Shown, Study, StudyTable, word
from fp8bench.tables.written import counted, rate, ratio, with_interval

CASTS: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
WAYS: dict[Casts, str] = {"none": "free", "compiled": "compiled", "eager": "eager"}
TONES: dict[str | None, doc.Tone] = {"faster": "good", "slower": "bad"}
DIGITS = 4
"""Digits of a time that is shown; its interval has the same precision. The data has all digits."""

UNLIKE = 0.1
"""The relative difference between a profile's GEMMs and those timed here from which a reader is warned."""


LINES: dict[Precision, str] = {
    "bf16": "#1f2328",
    "fp8-tensorwise": "#004b7a",
    "fp8-tensorwise-fast": "#4a98cc",
    "fp8-rowwise": "#a34700",
    "fp8-rowwise-fast": "#c98500",
}
BAR = 0.8
"""The height of a GEMM's bars together, of the distance between two GEMMs."""


@dataclass(frozen=True)
class Line:
    """A GEMM in one precision and way of casting; without a row, all GEMMs of a step. timing: of one GEMM, or of the
    step. flops: of the same, so that TFLOP/s count casts as time.
    """

    timing: Timing
    flops: int
    row: GemmRow | None = None

    @property
    def way(self) -> tuple[Precision, Casts]:
        return self.timing.precision, self.timing.casts

    @property
    def tflops(self) -> float | None:
        return self.flops / self.timing.time_s / 1e12 if self.timing.time_s else None

    @property
    def alone(self) -> GemmRow | None:
        """The row, unless casts are timed with it."""
        return self.row if self.timing.casts == "none" else None


def lines(report: GemmReport) -> list[Line]:
    """Return a line for each timing of a record."""
    return [
        Line(timing, row.shape.flops, row)
        for row in report.rows
        for timing in sorted(row.of.timings, key=lambda timing: CAST_WAYS.index(timing.casts))
        if timing.precision == row.precision
    ]


def steps(report: GemmReport) -> list[Line]:
    """Return the sums of a workload's step, in each precision and way of casting in which all GEMMs are known."""
    products = list({id(row.of): row.of for row in report.rows}.values())
    tried = {line.way for line in lines(report)}
    every = (one for one in product(PRECISIONS, CAST_WAYS) if one in tried)
    return [line for precision, casts in every if (line := _step(products, precision, casts)) is not None]


def _step(products: Sequence[ProductTimings], precision: Precision, casts: Casts) -> Line | None:
    parts: list[tuple[int, Timing]] = []
    flops = 0
    for one in products:
        # A GEMM that no mode converts takes its time in bf16 in every precision.
        timing = one.find("bf16") if one.product.stays_bf16 else one.find(precision, casts)
        calls = one.product.calls_per_step
        if timing is None or calls is None:
            return None
        parts.append((calls, timing))
        flops += one.product.shape.flops * calls
    intervals = [(calls, timing.time_ci_s) for calls, timing in parts if timing.time_ci_s is not None]
    low_s, high_s = (sum(calls * interval[end] for calls, interval in intervals) for end in (0, 1))
    total = Timing(
        precision=precision,
        casts=casts,
        emulated=any(timing.emulated for _, timing in parts),
        time_s=sum(calls * (timing.time_s or 0.0) for calls, timing in parts),
        time_ci_s=(low_s, high_s) if len(intervals) == len(parts) else None,
    )
    return Line(total, flops)


def _time(heading: str, scale: float) -> Column[Line]:

    def write(timing: Timing) -> str:
        before_point = len(str(int((timing.time_s or 0.0) * scale)))
        return with_interval(timing.time_s, timing.time_ci_s, f",.{max(0, DIGITS - before_point)}f", scale)

    return Column(heading, lambda line: line.timing, write, "interval", better="less")


def _speedup(line: Line) -> str:
    bf16 = line.row.of.find("bf16") if line.row else None
    return ratio(speedup(line.timing, bf16), judge(line.timing, bf16))


def _against(line: Line, first: Line) -> tuple[str, doc.Tone]:
    verdict = judge(line.timing, first.timing)
    return ratio(speedup(line.timing, first.timing), verdict), TONES.get(verdict, "")


def _refused(line: Line) -> tuple[str, str] | None:
    return None if line.timing.reason is None else (line.timing.status, line.timing.reason)


def _per_step_s(row: GemmRow) -> float | None:
    return row.time_s * row.calls_per_step if row.time_s is not None and row.calls_per_step else None


WAY: tuple[Column[Line], ...] = (
    word("precision", lambda line: line.timing.precision, once=True),
    word("casts", lambda line: WAYS[line.timing.casts] if line.timing.precision != "bf16" else None),
)
TFLOPS = Column[Line]("TFLOP/s", lambda line: line.tflops, rate, better="more")
MICROSECONDS = _time("us (95 %)", 1e6)
MILLISECONDS = _time("ms a step (interval)", 1e3)


def _alone(heading: str, get: Callable[[GemmRow], float | None], form: str, **looks: Any) -> Column[Line]:
    return Column(heading, lambda line: get(line.alone) if line.alone else None, form, **looks)


def _table(reports: Sequence[GemmReport]) -> StudyTable[Line]:
    named = any(row.product != str(row.shape) for report in reports for row in report.rows)
    gemm: Column[Line] = word("GEMM", lambda line: line.row.product if named and line.row else None, once=True)
    shape: Column[Line] = word("M x N x K", lambda line: str(line.row.shape) if line.row else None, once=True)
    calls = Column[Line](
        "calls", lambda line: line.row.calls_per_step if line.row else None, "d", once=True, spare=True
    )
    share: dict[str, Any] = {"scale": 100, "after": " %"}
    error = [_alone("error", lambda row: row.error, ".2g", **share)] if reports[0].names_formats else []
    return StudyTable(
        naming=(gemm, shape, *WAY),
        columns=(
            MICROSECONDS,
            TFLOPS,
            _alone("of ceiling", lambda row: row.share_of_ceiling, ".0f", **share),
            _alone("of peak", lambda row: row.share_of_peak, ".0f", spare=True, **share),
            Column("speed-up", _speedup, str, better="more"),
            *error,
            calls,
            _alone("ms a step", _per_step_s, ".2f", scale=1e3, spare=True),
        ),
        beside=(MICROSECONDS, TFLOPS),
        key=lambda line: (line.row and (line.row.product, line.row.shape), line.way),
        against=_against,
        refused=_refused,
    )


STEP = StudyTable[Line](
    naming=WAY,
    columns=(),
    beside=(MILLISECONDS, TFLOPS),
    key=lambda line: line.way,
    order=lambda line: (PRECISIONS.index(line.timing.precision), CAST_WAYS.index(line.timing.casts)),
    against=_against,
)


def found(report: GemmReport) -> list[str]:
    """Return the findings: ceilings, the size from which fp8 pays, and how much fp8 can give a step."""
    said = []
    if report.ceilings:
        shapes = [f"a cube of {c.shape.m}" if c.shape.is_square else str(c.shape) for c in report.ceilings]
        every = zip(report.ceilings, shapes, strict=True)
        fastest = ", ".join(f"{one.arithmetic} {rate(one.tflops)} TFLOP/s ({shape})" for one, shape in every)
        said.append(f"Measured ceilings, the fastest GEMMs seen: {fastest}.")
    peaks = (("bf16", report.peak_bf16_tflops), ("fp8", report.peak_fp8_tflops))
    if known := [f"{name} {peak:,.0f} TFLOP/s" for name, peak in peaks if peak is not None]:
        said.append(f"Datasheet's peaks, dense: {', '.join(known)}.")
    for precision in dict.fromkeys(one.precision for one in report.break_even):
        ways = {one.casts: one for one in report.break_even if one.precision == precision}
        sizes = {
            way: f"from {one.size} x {one.size} x {one.size} on" if one.size else "at no size"
            for way, one in ways.items()
        }
        pays = ", ".join(f"{sizes[way]} ({CASTS[way]})" for way in CAST_WAYS if way in ways)
        largest = max(max(one.sizes) for one in ways.values())
        said.append(f"{precision} is faster than bf16 {pays}; cubes were measured up to {largest}.")
    return [*said, *(line for one in report.bounds for line in _bound(one, report))]


def _bound(one: StepBound, report: GemmReport) -> Iterable[str]:
    gains = ", ".join(f"{gain.speedup:.2f}x ({CASTS[gain.casts]})" for gain in one.at_most)
    if one.step_time_s is None:
        yield (
            f"fp8 makes the GEMMs of the converted layers {gains} as fast; no baseline-bf16 run of "
            f"{report.workload} at batch {report.batch_size} on one GPU is kept for {report.instance}, so what that "
            "gives a whole step is not known: less, since nothing else of it gains."
        )
    else:
        yield from _bound_of_step(one, one.step_time_s, gains)
    if one.left_in_bf16:
        yield f"{one.left_in_bf16} GEMMs have no valid fp8 time, and count as bf16 here."


def _bound_of_step(one: StepBound, step_s: float, gains: str) -> Iterable[str]:
    setting = one.execution or ("compiled" if one.compiled else "eager")
    step = f"{step_s * 1e3:.1f} ms (baseline-bf16, {setting}, {counted(one.rounds or 0, 'round')})"
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


def notes(reports: Sequence[GemmReport], names: Sequence[str]) -> list[str]:
    """Return how to read the tables."""
    first, rows = reports[0], [row for report in reports for row in report.rows]
    emulated = [name for name, one in zip(names, reports, strict=True) if any(row.emulated for row in one.rows)]
    medians = "medians" if first.rounds == 1 else f"means of the medians of up to {first.rounds} rounds"
    cache = "from a cold cache" if first.cold_cache else "with warm caches"
    what = "of this one process" if len(reports) == 1 else "of one process each"
    refused = first.names_formats and any(row.status == "unsupported" for row in rows)
    several = len(reports) > 1
    every = (
        (emulated, f"fp8 is emulated on {', '.join(emulated)}: such times are not those of fp8, and have no ratio."),
        (True, f"Times are {medians}, {what}, {cache}. ?: the 95 % intervals overlap."),
        (several, f"ratio: the time of {names[0]} over this one's, so above 1 this one is faster."),
        (
            several and any(map(steps, reports)),
            "A step's interval goes from the sum of its GEMMs' lower ends to that of their upper ones.",
        ),
        (
            any(row.with_casts for row in rows),
            "TFLOP/s count a GEMM's operations over the whole time, casts too. Eager casts are torch operations one by "
            "one: a fused cast is cheaper.",
        ),
        (
            first.names_formats,
            "bf16's GEMM has a bf16 output, and the bias where fp8's has it. error: of the output, against exact sums "
            "of the same fp8 operands; rounding to e4m3 makes 2.6 %.",
        ),
        (
            refused,
            "cuBLASLt takes e4m3 x e4m3, e4m3 x e5m2 and e5m2 x e4m3, and has no GEMM of e5m2 x e5m2; torch adds no "
            "bias to an fp32 output.",
        ),
    )
    return [note.text for note in doc.notes(*every)]


def csv_of(reports: Sequence[GemmReport]) -> doc.CsvLines:
    """Return a line for each GEMM, precision and record: every field of `GemmRow`, and the record's warnings."""
    flat = [name for name in GemmRow.model_fields if name not in ("with_casts", "of")]
    of_casts = [name for name in WithCasts.model_fields if name != "casts"]
    rows = []
    for report in reports:
        for row in report.rows:
            ways = {one.casts: one for one in row.with_casts}
            casts = (getattr(ways.get(way), name, None) for way in CAST_WAYS[1:] for name in of_casts)
            rows.append((*(getattr(row, name) for name in flat), *casts, report.warnings))
    fields = (*flat, *(f"{way}_casts_{name}" for way in CAST_WAYS[1:] for name in of_casts), "warnings")
    return doc.CsvLines(fields, tuple(rows))


def draw(report: GemmReport, path: Path) -> None:
    """Draw TFLOP/s: a sweep as lines over the size, broken ones with casts; everything else as bars, a group for each
    GEMM. Raises as `chart.figure` does.
    """
    where = f"{report.what}, {report.device_name or f'CPU of {report.instance}'}"
    if report.is_sweep:
        # The cheaper casts of those that were timed.
        casts: Casts = "compiled" if any(line.timing.casts == "compiled" for line in lines(report)) else "eager"
        drawn = [line for precision in LINES for line in _drawn(report, precision, casts)]
        title = f"TFLOP/s by size: {where}; broken: with {casts} casts"
        chart.lines(path, title, drawn, ("M = N = K", "TFLOP/s"))
        return
    products = list(dict.fromkeys((row.product, row.shape) for row in report.rows))
    precisions = [name for name in LINES if any(row.precision == name for row in report.rows)]
    height = BAR / len(precisions)
    with chart.figure(1.5 + (0.2 + 0.17 * len(precisions)) * len(products), path) as figure:
        axes = figure.add_subplot()
        for row in report.rows:
            place = products.index((row.product, row.shape)) - BAR / 2 + height * precisions.index(row.precision)
            long = row.tflops or 0.0
            axes.barh(place, long, height * 0.9, align="edge", color=LINES[row.precision])
            said = row.status if row.tflops is None else rate(row.tflops)
            if row.emulated:
                said += " (emulated)"
            elif row.speedup_vs_bf16 and row.precision != "bf16":
                said += f", {row.speedup_vs_bf16:.2f}x"
            axes.text(long, place + height * 0.45, f" {said}", va="center", fontsize=8, color=INK)
        names = [str(shape) if product == str(shape) else f"{product}\n{shape}" for product, shape in products]
        axes.set_yticks(range(len(products)), names, fontsize=8, color=INK)
        # A GEMM that stays bf16 has one bar, above the middle of its place.
        axes.set_ylim(len(products) - 0.5, -0.5)
        axes.margins(x=0.15)
        chart.plain(axes, "TFLOP/s, and the speed-up over bf16 with the casts free")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        chart.title(figure, f"TFLOP/s of GEMMs: {where}")
        entries = [{"facecolor": LINES[name], "label": name} for name in precisions]
        chart.legend(figure, entries, min(3, len(entries)))


def _drawn(report: GemmReport, precision: Precision, casts: Casts) -> list[chart.Line]:
    mine = sorted((row for row in report.rows if row.precision == precision and row.tflops), key=lambda row: row.m)
    drawn = []
    for way in dict.fromkeys(("none", casts)):
        timed = ((row, row.of.find(precision, way)) for row in mine if row.shape.is_square)
        points = [(row.m, row.shape.tflops(one.time_s)) for row, one in timed if one and one.time_s]
        broken = way != "none"
        if points:
            name = f"{precision}, {way} casts" if broken else precision
            drawn.append(chart.Line(name, points, LINES[precision], broken))
    return drawn


STUDY = Study[GemmRecord, GemmReport](
    report=gemm_report,
    title=lambda reports, where: f"{reports[0].what}, on {where}; M x N x K: rows, output features, inner",
    tables=(
        Shown(table=_table, rows=lines),
        Shown(
            table=lambda _reports: STEP,
            rows=steps,
            heading=lambda _reports: "All GEMMs of a step, each as often as a step makes it:",
        ),
    ),
    found=found,
    notes=notes,
    lines=csv_of,
    figures=(("products", draw),),
)
