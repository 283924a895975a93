"""GEMMs as columns and sentences: a line for each GEMM, precision and way of casting, of one record or of several.

A ratio is the first record's time over this one's: above 1, this record is faster; a `?` says that their intervals
overlap. For a workload, the GEMMs of a step are also summed, each as often as a step makes it. The interval of a sum
goes from the sum of the lower ends to that of the upper ones: wider than necessary if the errors are independent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from fp8bench.kinds.gemm import figure
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.gemm.report import CAST_WAYS, GemmReport, GemmRow, WithCasts, gemm_report, judge, speedup
from fp8bench.schema.gemm import PRECISIONS, Casts, Precision, Shape, StepBound
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, Shown, Study, StudyTable, word
from fp8bench.tables.written import counted, rate, ratio, with_interval

CASTS: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
WAYS: dict[Casts, str] = {"none": "free", "compiled": "compiled", "eager": "eager"}
TONES: dict[str | None, doc.Tone] = {"faster": "good", "slower": "bad"}
DIGITS = 4
"""Digits of a time that is shown; its interval has the same precision. The data has all digits."""

UNLIKE = 0.1
"""The relative difference between a profile's GEMMs and those timed here from which a reader is warned."""


@dataclass(frozen=True)
class Line:
    """A GEMM in one precision and way of casting; without a row, all GEMMs of a step. Times are in seconds. flops: of
    the GEMMs, so that TFLOP/s count casts as time.
    """

    precision: Precision
    casts: Casts
    flops: int
    time_s: float | None
    time_ci_s: tuple[float, float] | None
    emulated: bool
    row: GemmRow | None = None
    timed: GemmRow | WithCasts | None = None

    @property
    def tflops(self) -> float | None:
        return self.flops / self.time_s / 1e12 if self.time_s else None

    @property
    def alone(self) -> GemmRow | None:
        """The row, unless casts are timed with it."""
        return self.row if self.casts == "none" else None


def lines(report: GemmReport) -> list[Line]:
    """Return a line for each timing of a record."""
    return [
        Line(row.precision, casts, row.shape.flops, timed.time_s, timed.time_ci_s, row.emulated, row, timed)
        for row in report.rows
        for casts in CAST_WAYS
        if (timed := row.way(casts)) is not None
    ]


def steps(report: GemmReport) -> list[Line]:
    """Return the sums of a workload's step, in each precision and way of casting in which all GEMMs are known."""
    products: dict[tuple[str, Shape], dict[Precision, GemmRow]] = {}
    for row in report.rows:
        products.setdefault((row.product, row.shape), {})[row.precision] = row
    tried = {(line.precision, line.casts) for line in lines(report)}
    every = (one for one in product(PRECISIONS, CAST_WAYS) if one in tried)
    return [line for precision, casts in every if (line := _step([*products.values()], precision, casts)) is not None]


def _step(products: Sequence[dict[Precision, GemmRow]], precision: Precision, casts: Casts) -> Line | None:
    time_s = low_s = high_s = 0.0
    flops, known, emulated = 0, True, False
    for rows in products:
        bf16 = rows.get("bf16")
        # A GEMM that no mode converts takes its time in bf16 in every precision.
        row, way = (bf16, CAST_WAYS[0]) if bf16 and bf16.stays_bf16 else (rows.get(precision), casts)
        timed = row.way(way) if row else None
        if row is None or timed is None or timed.time_s is None or row.calls_per_step is None:
            return None
        calls = row.calls_per_step
        time_s += timed.time_s * calls
        flops += row.shape.flops * calls
        emulated |= row.emulated
        known &= timed.time_ci_s is not None
        low, high = timed.time_ci_s or (0.0, 0.0)
        low_s, high_s = low_s + low * calls, high_s + high * calls
    return Line(precision, casts, flops, time_s, (low_s, high_s) if known else None, emulated)


def _time(scale: float) -> Callable[[Line], str]:

    def write(line: Line) -> str:
        before_point = len(str(int((line.time_s or 0.0) * scale)))
        return with_interval(line.time_s, line.time_ci_s, f",.{max(0, DIGITS - before_point)}f", scale)

    return write


def _speedup(line: Line) -> str:
    return ratio(line.timed.speedup_vs_bf16, line.timed.verdict) if line.timed else doc.NOTHING


def _against(line: Line, first: Line) -> tuple[str, doc.Tone]:
    verdict = judge(line, first)
    return ratio(speedup(line, first), verdict), TONES.get(verdict, "")


def _refused(line: Line) -> tuple[str, str] | None:
    timed = line.timed
    return None if timed is None or timed.reason is None else (timed.status, timed.reason)


def _per_step_s(line: Line) -> float | None:
    row = line.alone
    return row.time_s * row.calls_per_step if row and row.time_s is not None and row.calls_per_step else None


WAY: tuple[Column[Line], ...] = (
    word("precision", lambda line: line.precision, once=True),
    word("casts", lambda line: WAYS[line.casts] if line.precision != "bf16" else None),
)
TFLOPS = Column[Line]("TFLOP/s", lambda line: line.tflops, rate, better="more")
MICROSECONDS = Column[Line]("us (95 %)", lambda line: line, _time(1e6), "interval", better="less")
MILLISECONDS = Column[Line]("ms a step (interval)", lambda line: line, _time(1e3), "interval", better="less")


def _share(heading: str, get: Callable[[GemmRow], float | None], form: str = ".0f") -> Column[Line]:
    return Column(heading, lambda line: get(line.alone) if line.alone else None, form, scale=100, after=" %")


def _table(reports: Sequence[GemmReport]) -> StudyTable[Line]:
    named = any(row.product != str(row.shape) for report in reports for row in report.rows)
    of_formats = reports[0].names_formats
    gemm: Column[Line] = word("GEMM", lambda line: line.row.product if named and line.row else None, once=True)
    shape: Column[Line] = word("M x N x K", lambda line: str(line.row.shape) if line.row else None, once=True)
    calls = Column[Line](
        "calls", lambda line: line.row.calls_per_step if line.row else None, "d", once=True, spare=True
    )
    share_of_peak = _share("of peak", lambda row: row.share_of_peak)
    per_step = Column("ms a step", _per_step_s, ".2f", scale=1e3)
    error = [_share("error", lambda row: row.error, ".2g")] if of_formats else []
    return StudyTable(
        naming=(gemm, shape, *WAY),
        columns=(
            MICROSECONDS,
            TFLOPS,
            _share("of ceiling", lambda row: row.share_of_ceiling),
            replace(share_of_peak, spare=True),
            Column("speed-up", lambda line: line, _speedup, better="more"),
            *error,
            calls,
            replace(per_step, spare=True),
        ),
        beside=(MICROSECONDS, TFLOPS),
        key=lambda line: (line.row and (line.row.product, line.row.shape), line.precision, line.casts),
        against=_against,
        refused=_refused,
    )


STEP = StudyTable[Line](
    naming=WAY,
    columns=(),
    beside=(MILLISECONDS, TFLOPS),
    key=lambda line: (line.precision, line.casts),
    order=lambda line: (PRECISIONS.index(line.precision), CAST_WAYS.index(line.casts)),
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
    flat = [name for name in GemmRow.model_fields if name not in ("with_casts", "stays_bf16")]
    of_casts = [name for name in WithCasts.model_fields if name != "casts"]
    rows = (
        (
            *(getattr(row, name) for name in flat),
            *(getattr(row.way(way), name, None) for way in CAST_WAYS[1:] for name in of_casts),
            report.warnings,
        )
        for report in reports
        for row in report.rows
    )
    fields = (*flat, *(f"{way}_casts_{name}" for way in CAST_WAYS[1:] for name in of_casts), "warnings")
    return doc.CsvLines(fields, tuple(rows))


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
    figures=(("products", figure.draw),),
)
