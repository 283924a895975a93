"""GEMMs as numbers, columns, sentences and a picture: a line for each GEMM, precision and way of casting.

Two times differ if their 95 % intervals do not overlap: a stricter rule than a test of their ratio, and a narrower
claim, of one process each. Emulated GEMMs have no speed-up: their time is not that of fp8.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product, takewhile
from typing import Any, Literal, NamedTuple

from pydantic import Field

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.records.select import grouped
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.gemm import CASTS, Arithmetic, Casts, ModeGain, Precision, ProductTimings, Shape, StepBound, Timing
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.chart import Figure, Looks, Panel, Series
from fp8bench.tables.study import Column, Study, StudyTable, where, word
from fp8bench.tables.written import counted, rate, ratio, with_interval

Verdict = Literal["faster", "slower", "undecided"]
OF_PRODUCT = ("calls_per_step", "formats", "bias", "output")
OF_TIMING = ("precision", "status", "reason", "emulated", "error", "repetitions", "time_s", "time_ci_s")
OF_CASTS = ("status", "reason", "time_s", "time_ci_s", "speedup_vs_bf16", "verdict")
SAID: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
TONES: dict[str | None, doc.Tone] = {"faster": "good", "slower": "bad"}
COLOURS: dict[Precision, str] = {
    "bf16": "#1f2328",
    "fp8-tensorwise": "#004b7a",
    "fp8-tensorwise-fast": "#4a98cc",
    "fp8-rowwise": "#a34700",
    "fp8-rowwise-fast": "#c98500",
}


class MeasuredCeiling(Frozen):
    """The fastest GEMM of a record in one arithmetic, with casts free. Candidates are the large squares, which run
    before the power limit is felt, and all other GEMMs, because a shape that suits the GPU better may be even faster.
    """

    arithmetic: Arithmetic
    tflops: float
    precision: Precision
    shape: Shape


class BreakEven(Frozen):
    """The smallest M = N = K that is faster in fp8, and whose larger ones all are too; null if the largest is not."""

    precision: Precision
    casts: Casts
    size: int | None
    sizes: tuple[int, ...]


class Line(NamedTuple):
    """A GEMM in one precision and way of casting, and its numbers as json has them."""

    of: ProductTimings
    timing: Timing
    numbers: Mapping[str, Any]

    @property
    def way(self) -> tuple[Precision, Casts]:
        return self.timing.precision, self.timing.casts


class GemmReport(Frozen):
    """The numbers of one record. rounds: of each GEMM. peaks: from datasheets, in TFLOP/s; null if the GPU is unknown.
    lines: one for each timing, not in the data.

    rows: one for each GEMM and precision, and in `with_casts` the same GEMM after the casts of both operands. Times are
    in seconds for each GEMM; a speed-up is over bf16, which casts nothing.
    """

    run_id: str
    instance: str
    device_name: str | None
    workload: str | None
    batch_size: int | None
    is_sweep: bool
    cold_cache: bool
    rounds: int
    rows: tuple[Mapping[str, Any], ...]
    ceilings: tuple[MeasuredCeiling, ...]
    peak_bf16_tflops: float | None
    peak_fp8_tflops: float | None
    break_even: tuple[BreakEven, ...]
    bounds: tuple[StepBound, ...]
    warnings: tuple[str, ...]
    lines: tuple[Line, ...] = Field(exclude=True)

    @property
    def what(self) -> str:
        """What was measured, e.g. `vit-huge, batch 64`; `GEMMs` for shapes."""
        return f"{self.workload}, batch {self.batch_size}" if self.workload else "GEMMs"

    @property
    def measured(self) -> str:
        """The same with the device."""
        return f"{self.what}, {self.device_name or f'CPU of {self.instance}'}"


def gemm_report(record: GemmRecord, catalog: Catalog) -> GemmReport:
    """Return the numbers of a record. The catalogue gives the datasheet's peaks, by the exact name of the GPU."""
    gpu = catalog.gpu_by_product(record.device_name)
    peaks = {"bf16": gpu.dense_bf16_tflops, "fp8": gpu.dense_fp8_tflops} if gpu else {}
    ceilings = measured_ceilings(record)
    highest = {ceiling.arithmetic: ceiling.tflops for ceiling in ceilings}

    def line(one: ProductTimings, timing: Timing) -> Line:
        gemm, shape = one.product, one.product.shape
        free_s = timing.on_units_s if timing.casts == "none" else None
        ceiling, peak = highest.get(timing.arithmetic), peaks.get(timing.arithmetic)
        speedup, verdict = compared(timing, one.find("bf16"))
        numbers = {
            **{name: getattr(record, name) for name in ("run_id", "instance", "device_name")},
            **{name: getattr(record.config, name) for name in ("workload", "batch_size")},
            "product": gemm.label,
            "role": gemm.role,
            **shape.model_dump(),
            **{name: getattr(gemm, name) for name in OF_PRODUCT},
            **{name: getattr(timing, name) for name in OF_TIMING},
            "tflops": shape.tflops(timing.time_s) if timing.time_s else None,
            "share_of_ceiling": shape.tflops(free_s) / ceiling if free_s and ceiling else None,
            "share_of_peak": shape.tflops(free_s) / peak if free_s and peak else None,
            "speedup_vs_bf16": speedup,
            "verdict": verdict,
        }
        return Line(one, timing, numbers)

    lines: list[Line] = []
    rows: list[Mapping[str, Any]] = []
    for one in record.products:
        for timings in grouped(one.timings, lambda timing: timing.precision).values():
            free, *ways = (line(one, timing) for timing in timings)
            of_ways = [{"casts": way.timing.casts, **{name: way.numbers[name] for name in OF_CASTS}} for way in ways]
            rows.append({**free.numbers, "with_casts": of_ways})
            lines += sorted((free, *ways), key=lambda line: CASTS.index(line.timing.casts))
    return made_of(
        GemmReport,
        record,
        record.config,
        is_sweep=record.config.sweep,
        cold_cache=record.flush_bytes is not None,
        rows=tuple(rows),
        ceilings=ceilings,
        peak_bf16_tflops=peaks.get("bf16"),
        peak_fp8_tflops=peaks.get("fp8"),
        break_even=tuple(break_even(record.products)),
        lines=tuple(lines),
    )


def measured_ceilings(record: GemmRecord) -> tuple[MeasuredCeiling, ...]:
    """Return bf16's ceiling, then fp8's, each if the record has large squares of it."""
    found = []
    for square in record.ceilings:
        of = square.arithmetic
        every = [(square.tflops, square.precision, Shape.cube(square.size))]
        for shape, timing in ((one.product.shape, timing) for one in record.products for timing in one.timings):
            if (timing.arithmetic, timing.casts) == (of, "none") and timing.on_units_s:
                every.append((shape.tflops(timing.on_units_s), timing.precision, shape))
        tflops, precision, shape = max(every, key=lambda one: one[0])
        found.append(MeasuredCeiling(arithmetic=of, tflops=tflops, precision=precision, shape=shape))
    return tuple(found)


def break_even(products: Sequence[ProductTimings]) -> list[BreakEven]:
    """Return the break-even of each fp8 precision and way of casting, over the square sizes that were timed in it and
    in bf16; nothing for emulated ones, or for a single size, which has no "from there on".
    """
    cubes = (one for one in products if one.product.shape.is_cube and not one.product.layers)
    squares = sorted(cubes, key=lambda one: one.product.shape.m)
    found = []
    for way in dict.fromkeys((t.precision, t.casts) for one in squares for t in one.timings if t.precision != "bf16"):
        judged = [(one.product.shape.m, compared(one.find(*way), one.find("bf16"))[1]) for one in squares]
        known = [(size, verdict) for size, verdict in judged if verdict is not None]
        faster = [size for size, _ in takewhile(lambda one: one[1] == "faster", reversed(known))]
        if len(known) > 1:
            sizes, size = tuple(size for size, _ in known), faster[-1] if faster else None
            found.append(BreakEven(precision=way[0], casts=way[1], size=size, sizes=sizes))
    return found


def compared(timing: Timing | None, reference: Timing | None) -> tuple[float | None, Verdict | None]:
    """Return how many times as fast as the reference it is, None if either was not timed or is emulated; and the
    verdict, None also if either has no interval, or if both are the same.
    """
    if timing is None or reference is None or not timing.on_units_s or not reference.on_units_s:
        return None, None
    speedup = reference.on_units_s / timing.on_units_s
    if timing is reference or timing.time_ci_s is None or reference.time_ci_s is None:
        return speedup, None
    if timing.time_ci_s[1] < reference.time_ci_s[0]:
        return speedup, "faster"
    return speedup, "slower" if timing.time_ci_s[0] > reference.time_ci_s[1] else "undecided"


def _microseconds(timing: Timing) -> str:
    # Four digits, and the interval with the same precision. The data has all digits.
    before_point = len(str(int((timing.time_s or 0.0) * 1e6)))
    return with_interval(timing.time_s, timing.time_ci_s, f",.{max(0, 4 - before_point)}f", 1e6)


def _name(line: Line) -> str | None:
    label = line.of.product.label
    return None if label == str(line.of.product.shape) else label


def _against(line: Line, first: Line) -> tuple[str, doc.Tone]:
    speedup, verdict = compared(line.timing, first.timing)
    return ratio(speedup, verdict), TONES.get(verdict, "")


MICROSECONDS = Column[Line]("us (95 %)", lambda line: line.timing, _microseconds)
TFLOPS = Column[Line]("TFLOP/s", lambda line: line.numbers["tflops"], rate)
SHARE: dict[str, Any] = {"scale": 100, "after": " %"}
TABLE = StudyTable[Line](
    rows=lambda report: report.lines,
    naming=(
        word("GEMM", _name, once=True),
        word("M x N x K", lambda line: str(line.of.product.shape), once=True),
        word("precision", lambda line: line.timing.precision, once=True),
        word("casts", lambda line: line.timing.casts.replace("none", "free") if line.way[0] != "bf16" else None),
    ),
    columns=(
        MICROSECONDS,
        TFLOPS,
        Column("of ceiling", lambda line: line.numbers["share_of_ceiling"], ".0f", **SHARE),
        Column("of peak", lambda line: line.numbers["share_of_peak"], ".0f", spare=True, **SHARE),
        Column(
            "speed-up",
            lambda line: (line.numbers["speedup_vs_bf16"], line.numbers["verdict"]),
            lambda found: ratio(*found),
        ),
        Column("error", lambda line: line.of.product.formats and line.timing.error, ".2g", **SHARE),
        Column("calls", lambda line: line.of.product.calls_per_step, "d", once=True, spare=True),
    ),
    beside=(MICROSECONDS, TFLOPS),
    key=lambda line: (line.of.product.label, line.of.product.shape, line.way),
    against=_against,
    refused=lambda line: (line.timing.status, line.timing.reason) if line.timing.reason is not None else None,
)


def csv_of(reports: Sequence[GemmReport]) -> doc.CsvLines:
    rows = [
        {**line.numbers, "casts": line.timing.casts, "warnings": report.warnings}
        for report in reports
        for line in report.lines
    ]
    return doc.CsvLines(tuple(rows[0]) if rows else (), tuple(tuple(row.values()) for row in rows))


def found(report: GemmReport) -> list[str]:
    """Return the findings: ceilings, the size from which fp8 pays, and how much fp8 can give a step."""
    said = []
    if report.ceilings:
        fastest = ", ".join(f"{one.arithmetic} {rate(one.tflops)} TFLOP/s ({one.shape})" for one in report.ceilings)
        said.append(f"Measured ceilings, the fastest GEMMs seen: {fastest}.")
    for precision, mine in grouped(report.break_even, lambda one: one.precision).items():
        pays = ", ".join(
            f"{f'from {Shape.cube(one.size)} on' if one.size else 'at no size'} ({SAID[one.casts]})"
            for one in sorted(mine, key=lambda one: CASTS.index(one.casts))
        )
        largest = max(max(one.sizes) for one in mine)
        said.append(f"{precision} is faster than bf16 {pays}; cubes were measured up to {largest}.")
    return [*said, *(line for one in report.bounds for line in _bound(one, report))]


def _bound(one: StepBound, report: GemmReport) -> Iterable[str]:
    gains = ", ".join(f"{gain.speedup:.2f}x ({SAID[gain.casts]})" for gain in one.at_most)
    if one.step_time_s is None:
        yield (
            f"fp8 makes the GEMMs of the converted layers {gains} as fast, and a whole step less so: no baseline-bf16 "
            f"run of {report.workload} at batch {report.batch_size} on one GPU is kept for {report.instance}."
        )
    else:
        most = f"fp8 can give it at most {gains}" if one.reason is None else f"no bound, since {one.reason}"
        yield (
            f"A step takes {one.step_time_s * 1e3:.1f} ms (baseline-bf16, {_setting(one)}, "
            f"{counted(one.rounds or 0, 'round')}) and has {one.bf16_products_s * 1e3:.1f} ms of GEMMs that fp8 modes "
            f"convert: {most}."
        )
    for mode in one.modes if one.reason is None else ():
        limit = f", and is {mode.held_back_by}" if mode.held_back_by else ""
        yield f"{mode.label} ({_setting(mode)}) gives {mode.speedup:.2f}x ({mode.step_time_s * 1e3:.1f} ms){limit}."
    alone_s = one.bf16_products_s + one.other_products_s
    if one.profiled_products_s and abs(alone_s / one.profiled_products_s - 1) > 0.1:
        yield (
            f"All GEMMs take {one.profiled_products_s * 1e3:.1f} ms in the step's profile, and alone those of the "
            f"linear layers {alone_s * 1e3:.1f}: the bound is only as good as that."
        )
    if one.left_in_bf16:
        yield f"{one.left_in_bf16} GEMMs have no valid fp8 time, and count as bf16 here."


def _setting(one: StepBound | ModeGain) -> str:
    return one.execution or ("compiled" if one.compiled else "eager")


def notes(reports: Sequence[GemmReport], names: Sequence[str]) -> list[str]:
    first, lines = reports[0], [line for report in reports for line in report.lines]
    medians = "medians" if first.rounds == 1 else f"means of the medians of up to {first.rounds} rounds"
    cache = "from a cold cache" if first.cold_cache else "with warm caches"
    said = [f"Times are {medians}, of one process, {cache}, casts included. ?: the 95 % intervals overlap."]
    if any(line.timing.emulated for line in lines):
        said.append("fp8 is emulated on a CPU: such times are not those of fp8, and have no ratio.")
    if names[1:]:
        said.append(f"ratio: the time of {names[0]} over this one's, so above 1 this one is faster.")
    if any(line.of.product.formats for line in lines):
        said.append("error: of the output, against exact sums of the same fp8 operands; rounding to e4m3 makes 2.6 %.")
    return said


def lines_by_size(report: GemmReport) -> Figure:
    """Return the TFLOP/s of a sweep as lines over the size, broken ones with casts."""
    # The cheaper casts of those that were timed.
    casts: Casts = "compiled" if any(line.timing.casts == "compiled" for line in report.lines) else "eager"
    cubes = [line for line in report.lines if line.of.product.shape.is_cube and line.numbers["tflops"]]
    series = []
    for precision, way in product(COLOURS, ("none", casts)):
        points = sorted((one.numbers["m"], one.numbers["tflops"]) for one in cubes if one.way == (precision, way))
        if points:
            looks = Looks(COLOURS[precision], "-" if way == "none" else (0, (4, 2)), marker="o", size=3.5)
            series.append(Series(points, looks, precision if way == "none" else f"{precision}, {way} casts"))
    sizes = sorted({one.numbers["m"] for one in cubes})
    panel = Panel(series, "TFLOP/s", "M = N = K", log="x", ticks=sizes, from_0=True)
    return Figure(f"TFLOP/s by size: {report.measured}; broken: with {casts} casts", ((panel,),))


def bars_by_gemm(report: GemmReport) -> Figure:
    """Return the TFLOP/s as bars, a group for each GEMM."""

    def said(line: Line) -> str:
        rated = line.timing.status if line.numbers["tflops"] is None else rate(line.numbers["tflops"])
        speedup = line.numbers["speedup_vs_bf16"] if line.way[0] != "bf16" else None
        gain = f", {speedup:.2f}x" if speedup else ""
        return f"{rated} (emulated)" if line.timing.emulated else f"{rated}{gain}"

    free = [line for line in report.lines if line.timing.casts == "none"]
    names = ["\n".join(filter(None, (_name(line), str(line.of.product.shape)))) for line in free]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    series = []
    for precision, colour in COLOURS.items():
        mine = [(line, places[name]) for line, name in zip(free, names, strict=True) if line.way[0] == precision]
        ends = [(line.numbers["tflops"] or 0.0, place) for line, place in mine]
        series += (
            [Series(ends, Looks(colour, width=9), precision, bars=[said(line) for line, _ in mine])] if mine else []
        )
    x = "TFLOP/s, and the speed-up over bf16 with the casts free"
    height = 0.6 + (0.2 + 0.17 * len(series)) * len(places)
    panel = Panel(series, x=x, names=list(places), height=height)
    return Figure(f"TFLOP/s of GEMMs: {report.measured}", ((panel,),))


STUDY = Study[GemmRecord, GemmReport](
    reports=lambda records, catalog, _options: [gemm_report(one, catalog) for one in records],
    title=lambda reports, names: (
        f"{reports[0].what}, on {where(reports, names)}; M x N x K: rows, output features, inner"
    ),
    tables=(TABLE,),
    found=found,
    notes=notes,
    lines=csv_of,
    figures=lambda report: {"products": lines_by_size if report.is_sweep else bars_by_gemm},
)
