"""GEMMs as columns, sentences and a picture: a line for each GEMM, precision and way of casting, of one record or more.

A ratio is the first record's time over this one's: above 1, this record is faster; a `?` says that their intervals
overlap.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.gemm.report import COMPARED, OF_CASTS, GemmReport, Line, compared, gemm_report, in_order, steps
from fp8bench.records.select import grouped
from fp8bench.schema.gemm import CASTS, Casts, ModeGain, Precision, Shape, StepBound, Timing
from fp8bench.tables import chart
from fp8bench.tables import document as doc
from fp8bench.tables.chart import INK
from fp8bench.tables.study import Column, Study, StudyTable, word
from fp8bench.tables.written import counted, rate, ratio, with_interval

SAID: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
TONES: dict[str | None, doc.Tone] = {"faster": "good", "slower": "bad"}
DIGITS = 4
"""Digits of a time that is shown; its interval has the same precision. The data has all digits."""

UNLIKE = 0.1
"""The relative difference between a profile's GEMMs and those timed here from which a reader is warned."""

COLOURS: dict[Precision, str] = {
    "bf16": "#1f2328",
    "fp8-tensorwise": "#004b7a",
    "fp8-tensorwise-fast": "#4a98cc",
    "fp8-rowwise": "#a34700",
    "fp8-rowwise-fast": "#c98500",
}
BAR = 0.8
"""The height of a GEMM's bars together, of the distance between two GEMMs."""


def _time(heading: str, scale: float) -> Column[Line]:

    def write(timing: Timing) -> str:
        before_point = len(str(int((timing.time_s or 0.0) * scale)))
        return with_interval(timing.time_s, timing.time_ci_s, f",.{max(0, DIGITS - before_point)}f", scale)

    return Column(heading, lambda line: line.timing, write, "interval", better="less")


def _name(line: Line) -> str | None:
    """Return the name of the GEMM, if it has another than its shape."""
    label = line.of.product.label if line.of else None
    return None if line.of is None or label == str(line.of.product.shape) else label


def _against(line: Line, first: Line) -> tuple[str, doc.Tone]:
    speedup, verdict = compared(line.timing, first.timing)
    return ratio(speedup, verdict), TONES.get(verdict, "")


WAY: tuple[Column[Line], ...] = (
    word("precision", lambda line: line.timing.precision, once=True),
    word("casts", lambda line: None if line.timing.precision == "bf16" else line.timing.casts.replace("none", "free")),
)
TFLOPS = Column[Line]("TFLOP/s", lambda line: line.tflops, rate, better="more")
MICROSECONDS = _time("us (95 %)", 1e6)
SHARE: dict[str, Any] = {"scale": 100, "after": " %"}
TABLE = StudyTable[Line](
    rows=lambda report: report.lines,
    naming=(
        word("GEMM", _name, once=True),
        word("M x N x K", lambda line: str(line.of.product.shape) if line.of else None, once=True),
        *WAY,
    ),
    columns=(
        MICROSECONDS,
        TFLOPS,
        Column("of ceiling", lambda line: line.row.get("share_of_ceiling"), ".0f", **SHARE),
        Column("of peak", lambda line: line.row.get("share_of_peak"), ".0f", spare=True, **SHARE),
        Column(
            "speed-up",
            lambda line: line.of and compared(line.timing, line.of.find("bf16")),
            lambda found: ratio(*found),
            better="more",
        ),
        Column("error", lambda line: line.row.get("formats") and line.row["error"], ".2g", **SHARE),
        Column("calls", lambda line: line.of and line.of.product.calls_per_step, "d", once=True, spare=True),
        Column(
            "ms a step",
            lambda line: (line.row.get("time_s") or 0.0) * (line.row.get("calls_per_step") or 0) or None,
            ".2f",
            scale=1e3,
            spare=True,
        ),
    ),
    beside=(MICROSECONDS, TFLOPS),
    key=lambda line: (line.of and (line.of.product.label, line.of.product.shape), line.way),
    against=_against,
    refused=lambda line: (line.timing.status, line.timing.reason) if line.timing.reason is not None else None,
)
STEP = StudyTable[Line](
    rows=steps,
    heading="All GEMMs of a step, each as often as a step makes it:",
    naming=WAY,
    columns=(),
    beside=(_time("ms a step (interval)", 1e3), TFLOPS),
    key=lambda line: line.way,
    order=lambda line: in_order(line.way),
    against=_against,
)


def csv_of(reports: Sequence[GemmReport]) -> doc.CsvLines:
    """Return a line for each GEMM, precision and record: every field of a row, and the record's warnings."""
    rows: list[dict[str, Any]] = []
    for row, warnings in ((row, report.warnings) for report in reports for row in report.rows):
        ways = {one["casts"]: one for one in row["with_casts"]}
        names = product(CASTS[1:], (*OF_CASTS, *COMPARED))
        casts = {f"{way}_casts_{name}": ways.get(way, {}).get(name) for way, name in names}
        rows.append({**row, **casts, "warnings": warnings})
        del rows[-1]["with_casts"]
    return doc.CsvLines(tuple(rows[0]) if rows else (), tuple(tuple(row.values()) for row in rows))


def found(report: GemmReport) -> list[str]:
    """Return the findings: ceilings, the size from which fp8 pays, and how much fp8 can give a step."""
    said = []
    if report.ceilings:
        fastest = (
            f"{one.arithmetic} {rate(one.tflops)} TFLOP/s "
            f"({f'a cube of {one.shape.m}' if one.shape.is_cube else one.shape})"
            for one in report.ceilings
        )
        said.append(f"Measured ceilings, the fastest GEMMs seen: {', '.join(fastest)}.")
    peaks = (("bf16", report.peak_bf16_tflops), ("fp8", report.peak_fp8_tflops))
    if known := [f"{name} {peak:,.0f} TFLOP/s" for name, peak in peaks if peak is not None]:
        said.append(f"Datasheet's peaks, dense: {', '.join(known)}.")
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
    alone_s = one.bf16_products_s + one.other_products_s
    if one.step_time_s is None:
        yield (
            f"fp8 makes the GEMMs of the converted layers {gains} as fast; no baseline-bf16 run of "
            f"{report.workload} at batch {report.batch_size} on one GPU is kept for {report.instance}, so what that "
            "gives a whole step is not known: less, since nothing else of it gains."
        )
    else:
        how = f"baseline-bf16, {_setting(one)}, {counted(one.rounds or 0, 'round')}"
        gemms = f"{one.bf16_products_s * 1e3:.1f} ms of GEMMs that fp8 modes convert"
        most = f"fp8 can give it at most {gains}" if one.reason is None else f"no bound, since {one.reason}"
        yield f"A step takes {one.step_time_s * 1e3:.1f} ms ({how}) and has {gemms}: {most}."
    if one.step_time_s is not None and one.reason is None:
        for mode in one.modes:
            beyond = mode.speedup > max((gain.speedup for gain in one.at_most), default=math.inf)
            more = ", more than its GEMMs can: the mode replaces other parts too" if beyond else ""
            limit = f", and is {mode.held_back_by}" if mode.held_back_by else ""
            gives = f"{mode.speedup:.2f}x ({mode.step_time_s * 1e3:.1f} ms)"
            yield f"{mode.label} ({_setting(mode)}) gives {gives}{more}{limit}."
        if one.profiled_products_s and abs(alone_s / one.profiled_products_s - 1) > UNLIKE:
            yield (
                f"In the step's profile all GEMMs take {one.profiled_products_s * 1e3:.1f} ms, and timed alone those "
                f"of the linear layers take {alone_s * 1e3:.1f}: the bound is only as good as that."
            )
    if one.left_in_bf16:
        yield f"{one.left_in_bf16} GEMMs have no valid fp8 time, and count as bf16 here."


def _setting(one: StepBound | ModeGain) -> str:
    return one.execution or ("compiled" if one.compiled else "eager")


def notes(reports: Sequence[GemmReport], names: Sequence[str]) -> list[str]:
    """Return how to read the tables."""
    first, several = reports[0], len(reports) > 1
    emulated = [
        name for name, one in zip(names, reports, strict=True) if any(line.timing.emulated for line in one.lines)
    ]
    medians = "medians" if first.rounds == 1 else f"means of the medians of up to {first.rounds} rounds"
    process = "of one process each" if several else "of this one process"
    cache = "from a cold cache" if first.cold_cache else "with warm caches"
    every = (
        (emulated, f"fp8 is emulated on {', '.join(emulated)}: such times are not those of fp8, and have no ratio."),
        (True, f"Times are {medians}, {process}, {cache}. ?: the 95 % intervals overlap."),
        (several, f"ratio: the time of {names[0]} over this one's, so above 1 this one is faster."),
        (
            several and any(map(steps, reports)),
            "A step's interval goes from the sum of its GEMMs' lower ends to that of their upper ones.",
        ),
        (
            any(line.timing.casts != "none" for report in reports for line in report.lines),
            "TFLOP/s count a GEMM's operations over the whole time, casts too. Eager casts are torch operations one by "
            "one: a fused cast is cheaper.",
        ),
        (
            any(row["formats"] for row in first.rows),
            "error: of the output, against exact sums of the same fp8 operands; rounding to e4m3 makes 2.6 %.",
        ),
    )
    return [text for holds, text in every if holds]


def draw(report: GemmReport, path: Path) -> None:
    """Draw TFLOP/s: a sweep as lines over the size, broken ones with casts; everything else as bars, a group for each
    GEMM. Raises as `chart.figure` does.
    """
    where = f"{report.what}, {report.device_name or f'CPU of {report.instance}'}"
    if report.is_sweep:
        # The cheaper casts of those that were timed.
        casts: Casts = "compiled" if any(line.timing.casts == "compiled" for line in report.lines) else "eager"
        drawn = []
        for precision, way in product(COLOURS, ("none", casts)):
            name = precision if way == "none" else f"{precision}, {way} casts"
            mine = [line for line in report.lines if line.way == (precision, way)]
            shapes = [(line.of.product.shape, line.tflops) for line in mine if line.of]
            points = sorted((shape.m, tflops) for shape, tflops in shapes if shape.is_cube and tflops)
            if points:
                drawn.append(chart.Line(name, points, COLOURS[precision], broken=way != "none"))
        chart.lines(path, f"TFLOP/s by size: {where}; broken: with {casts} casts", drawn, ("M = N = K", "TFLOP/s"))
        return

    def name_of(row: Mapping[str, Any]) -> str:
        shape = f"{row['m']} x {row['n']} x {row['k']}"
        return shape if row["product"] == shape else f"{row['product']}\n{shape}"

    gemms = grouped(report.rows, name_of)
    precisions = [name for name in COLOURS if any(row["precision"] == name for row in report.rows)]
    height = BAR / len(precisions)
    with chart.figure(1.5 + (0.2 + 0.17 * len(precisions)) * len(gemms), path) as figure:
        axes = figure.add_subplot()
        for number, row in ((number, row) for number, rows in enumerate(gemms.values()) for row in rows):
            place = number - BAR / 2 + height * precisions.index(row["precision"])
            long = row["tflops"] or 0.0
            axes.barh(place, long, height * 0.9, align="edge", color=COLOURS[row["precision"]])
            said = row["status"] if row["tflops"] is None else rate(row["tflops"])
            if row["emulated"]:
                said += " (emulated)"
            elif row["speedup_vs_bf16"] and row["precision"] != "bf16":
                said += f", {row['speedup_vs_bf16']:.2f}x"
            axes.text(long, place + height * 0.45, f" {said}", va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(gemms)), list(gemms), fontsize=8, color=INK)
        # A GEMM that stays bf16 has one bar, above the middle of its place.
        axes.set_ylim(len(gemms) - 0.5, -0.5)
        axes.margins(x=0.15)
        chart.plain(axes, "TFLOP/s, and the speed-up over bf16 with the casts free")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        chart.title(figure, f"TFLOP/s of GEMMs: {where}")
        entries = [{"facecolor": COLOURS[name], "label": name} for name in precisions]
        chart.legend(figure, entries, min(3, len(entries)))


STUDY = Study[GemmRecord, GemmReport](
    report=gemm_report,
    title=lambda reports, where: f"{reports[0].what}, on {where}; M x N x K: rows, output features, inner",
    tables=(TABLE, STEP),
    found=found,
    notes=notes,
    lines=csv_of,
    figures=(("products", draw),),
)
