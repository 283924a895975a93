"""Matrix products as text: a table in a terminal, plain text, markdown, csv or json, and in sentences what follows from
them. Looks only; the numbers are in `gemm`.

Each function takes records of `fp8bench gemm`, and the catalogue for the datasheets' peaks.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fp8bench.report.bounds import bounds
from fp8bench.report.cell_text import csv_cell, safe_in
from fp8bench.report.gemm import CAST_WAYS, BreakEven, GemmReport, GemmRow, WithCasts, gemm_report
from fp8bench.report.rich_table import empty_table
from fp8bench.report.table_split import split
from fp8bench.schema.gemm import Casts, GemmRecord, Shape, StepBound
from fp8bench.schema.instance import Catalog
from fp8bench.schema.plain_text import inert

NOTHING = "-"
SAID: dict[Casts, str] = {"none": "casts free", "compiled": "with compiled casts", "eager": "with eager casts"}
NAMING = ("product", "M x N x K", "precision")
UNLIKE = 0.1
"""How far a profile's products and those timed here may lie apart before a reader is told."""

METHOD = (
    "Times are {medians}, all of this one process, {cache}; two of them are called different where their 95 % "
    "intervals have nothing in common (a `?` marks those that overlap). {casts}"
)
CASTS = "Eager casts are torch operations one by one: a fused cast is cheaper."
EMULATED = "fp8 is emulated on this device: its times say nothing of fp8, and no speed-up is shown."


@dataclass(frozen=True)
class Column:
    """One column of the table. repeats: left empty under an equal cell of the same product."""

    heading: str
    write: Callable[[GemmRow], str]
    numeric: bool = True
    repeats: bool = False


def to_json(records: Sequence[GemmRecord], catalog: Catalog) -> str:
    """A list of `GemmReport`, one a record, numbers unrounded."""
    return json.dumps([gemm_report(record, catalog).model_dump(mode="json") for record in records], indent=2)


def to_csv(records: Sequence[GemmRecord], catalog: Catalog) -> str:
    """A line a product, precision and record: every field of `GemmRow`, numbers unrounded, and the record's warnings;
    null is empty.
    """
    flat = [name for name in GemmRow.model_fields if name != "with_casts"]
    of_casts = [name for name in WithCasts.model_fields if name != "casts"]
    ways = [way for way in CAST_WAYS if way != "none"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*flat, *(f"{way}_casts_{name}" for way in ways for name in of_casts), "warnings"])
    for record in records:
        for row in gemm_report(record, catalog).rows:
            cells = [getattr(row, name) for name in flat]
            cells += [getattr(row.way(way), name, None) for way in ways for name in of_casts]
            writer.writerow(map(csv_cell, [*cells, record.warnings]))
    return buffer.getvalue().rstrip("\n")


def to_markdown(records: Sequence[GemmRecord], catalog: Catalog) -> str:
    """GitHub tables, each with its sentences under it."""
    return _with_tabulate(records, catalog, "github", "\n\n")


def to_plain(records: Sequence[GemmRecord], catalog: Catalog) -> str:
    """Tables for a pipe or a file."""
    return _with_tabulate(records, catalog, "simple", "\n")


def print_rich(records: Sequence[GemmRecord], catalog: Catalog) -> None:
    """To the terminal; where a table is too wide, as several, each with the columns that name a row."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for record in records:
        report = gemm_report(record, catalog)
        console.print(Text(inert(title(report)), style="bold"))
        whole = columns(report)
        naming = sum(column.heading in NAMING for column in whole)
        for shown in split(whole, naming, report.rows, console.width):
            table = empty_table((column.heading, column.numeric) for column in shown)
            for row, cells in zip(report.rows, _cells(shown, report.rows), strict=True):
                table.add_row(*map(Text, map(inert, cells)), style="" if row.status == "ok" else "dim")
            console.print(table)
        for line in sentences(report):
            console.print(Text(inert(line)))


def title(report: GemmReport) -> str:
    """What was measured, and where."""
    what = f"{report.workload}, batch {report.batch_size}" if report.workload else "matrix products"
    return f"{what}, on {report.instance} ({report.device_name or 'CPU'}); M x N x K: rows, output features, inner"


def columns(report: GemmReport) -> list[Column]:
    """Those that have something to say for this record, the ones that name a row first."""
    shown = [
        Column("product", lambda r: r.product, numeric=False, repeats=True),
        Column("M x N x K", lambda r: r.shape, repeats=True),
        Column("precision", lambda r: r.precision, numeric=False),
    ]
    if all(row.product == row.shape for row in report.rows):
        del shown[0]
    if report.workload:
        shown.append(Column("calls", lambda r: _form(r.calls_per_step, "d"), repeats=True))
        shown.append(Column("ms a step", lambda r: _form(_per_step(r), ".2f", 1e3)))
    shown += [
        Column("us (95 % interval)", lambda r: time_text(r.time_s, r.time_ci_s)),
        Column("TFLOP/s", lambda r: tflops_text(r.tflops)),
        Column("of ceiling", lambda r: _form(r.share_of_ceiling, ".0f", 100, " %")),
        Column("of peak", lambda r: _form(r.share_of_peak, ".0f", 100, " %")),
        Column("speed-up", lambda r: ratio_text(r.speedup_vs_bf16, r.verdict)),
    ]
    for way in CAST_WAYS[1:]:
        if any(row.way(way) for row in report.rows):
            shown.append(Column(f"us {SAID[way]}", _cast_time(way)))
            shown.append(Column(f"speed-up {SAID[way]}", _cast_speedup(way)))
    return [*shown, Column("notes", _notes, numeric=False)]


def sentences(report: GemmReport) -> list[str]:
    """What follows from the table, a line each."""
    emulated = [EMULATED] if any(row.emulated for row in report.rows) else []
    return [*own_sentences(report), *emulated, METHOD.format(medians=medians(report), cache=cache(report), casts=CASTS)]


def own_sentences(report: GemmReport) -> list[str]:
    """What was found out here: ceilings, from which size on fp8 pays, and how much it can give a step."""
    said = [*_ceilings(report), *_break_even(report.break_even)]
    return [*said, *(line for one in report.bounds for line in _bound(one, report))]


def medians(report: GemmReport) -> str:
    """What a time is."""
    return "medians" if report.rounds == 1 else f"means of {report.rounds} rounds' medians (of one round with casts)"


def cache(report: GemmReport) -> str:
    """What the products found in the caches."""
    return "from a cold cache" if report.cold_cache else "with warm caches"


def _with_tabulate(records: Sequence[GemmRecord], catalog: Catalog, form: str, between: str) -> str:
    from tabulate import tabulate

    safe = safe_in(form)
    written = []
    for record in records:
        report = gemm_report(record, catalog)
        shown = columns(report)
        table = tabulate(
            [[safe(cell) for cell in cells] for cells in _cells(shown, report.rows)],
            headers=[column.heading for column in shown],
            tablefmt=form,
            colalign=["right" if column.numeric else "left" for column in shown],
            disable_numparse=True,
        )
        said = (*sentences(report), *(f"warning: {warning}" for warning in report.warnings))
        written.append(f"{safe(title(report))}\n\n{table}\n\n{between.join(map(safe, said))}")
    return "\n\n".join(written)


def _cells(shown: Sequence[Column], rows: Sequence[GemmRow]) -> list[list[str]]:
    cells = []
    above: GemmRow | None = None
    for row in rows:
        same = above is not None and (above.product, above.shape) == (row.product, row.shape)
        cells.append(["" if same and column.repeats else column.write(row) for column in shown])
        above = row
    return cells


def _form(value: float | None, form: str, scale: float = 1, after: str = "") -> str:
    return NOTHING if value is None else f"{value * scale:{form}}{after}"


def tflops_text(value: float | None) -> str:
    """Whole numbers, but three digits of a small one."""
    return _form(value, ".3g" if value is None or value < 100 else ",.0f")


def time_text(
    time_s: float | None, interval: tuple[float, float] | None, scale: float = 1e6, form: str = ",.1f"
) -> str:
    """With its interval, where it has one. scale: to the unit that is shown, of itself microseconds."""
    if time_s is None:
        return NOTHING
    if interval is None:
        return f"{time_s * scale:{form}}"
    return f"{time_s * scale:{form}} ({bounds(*interval, lambda end: f'{end * scale:{form}}')})"


def _per_step(row: GemmRow) -> float | None:
    return row.time_s * row.calls_per_step if row.time_s is not None and row.calls_per_step else None


def ratio_text(value: float | None, verdict: str | None) -> str:
    """A `?` where the intervals overlap."""
    return NOTHING if value is None else f"{value:.2f}x{'?' if verdict == 'undecided' else ''}"


def _cast_time(way: Casts) -> Callable[[GemmRow], str]:
    def write(row: GemmRow) -> str:
        found = row.way(way)
        return time_text(found.time_s, found.time_ci_s) if found else NOTHING

    return write


def _cast_speedup(way: Casts) -> Callable[[GemmRow], str]:
    def write(row: GemmRow) -> str:
        found = row.way(way)
        return ratio_text(found.speedup_vs_bf16, found.verdict) if found else NOTHING

    return write


def _notes(row: GemmRow) -> str:
    notes = ["emulated"] if row.emulated else []
    if row.status != "ok":
        notes.append(f"{row.status}: {row.reason}")
    notes += [f"{SAID[one.casts]} {one.status}: {one.reason}" for one in row.with_casts if one.status != "ok"]
    return "; ".join(notes)


def _ceilings(report: GemmReport) -> Iterable[str]:
    if report.ceilings:
        found = (f"{c.arithmetic} {tflops_text(c.tflops)} TFLOP/s ({_of(c.shape)})" for c in report.ceilings)
        yield f"Measured ceilings, the fastest products seen: {', '.join(found)}."
    peaks = (("bf16", report.peak_bf16_tflops), ("fp8", report.peak_fp8_tflops))
    known = [f"{name} {peak:,.0f} TFLOP/s" for name, peak in peaks if peak is not None]
    if known:
        yield f"Datasheet's peaks, dense: {', '.join(known)}."


def _of(shape: Shape) -> str:
    return f"a cube of {shape.m}" if shape.is_square else str(shape)


def _break_even(found: Sequence[BreakEven]) -> Iterable[str]:
    """One line a precision."""
    for precision in dict.fromkeys(one.precision for one in found):
        ways = {one.casts: one for one in found if one.precision == precision}
        said = [f"{_from_size(ways[way])} ({SAID[way]})" for way in CAST_WAYS if way in ways]
        largest = max(max(one.sizes) for one in ways.values())
        yield f"{precision} is faster than bf16 {', '.join(said)}; cubes were measured up to {largest}."


def _from_size(one: BreakEven) -> str:
    return "at no size" if one.size is None else f"from {one.size} x {one.size} x {one.size} on"


def _bound(one: StepBound, report: GemmReport) -> Iterable[str]:
    gains = ", ".join(f"{gain.speedup:.2f}x ({SAID[gain.casts]})" for gain in one.at_most)
    if one.step_time_s is None:
        yield (
            f"fp8 makes the products of the converted layers {gains} as fast; no baseline-bf16 run of "
            f"{report.workload} at batch {report.batch_size} on one GPU is kept for {report.instance}, so what that "
            "gives a whole step is not known: less, since nothing else of it gains."
        )
    else:
        yield from _bound_of_step(one, gains)
    if one.left_in_bf16:
        yield f"{one.left_in_bf16} products have no right fp8 time, and count as bf16 in this."


def _bound_of_step(one: StepBound, gains: str) -> Iterable[str]:
    setting = one.execution or ("compiled" if one.compiled else "eager")
    rounds = f"{one.rounds} round" if one.rounds == 1 else f"{one.rounds} rounds"
    step = f"{(one.step_time_s or 0) * 1e3:.1f} ms (baseline-bf16, {setting}, {rounds})"
    products = f"{one.bf16_products_s * 1e3:.1f} ms of products that fp8 modes convert"
    if one.reason is not None:
        yield f"A step takes {step} and has {products}: no bound, since {one.reason}."
        return
    yield f"A step takes {step} and has {products}: fp8 can give it at most {gains}."
    for mode in one.modes:
        beyond = bool(one.at_most) and mode.speedup > max(gain.speedup for gain in one.at_most)
        more = ", more than its products can: the mode replaces other parts too" if beyond else ""
        setting = mode.execution or ("compiled" if mode.compiled else "eager")
        held = f", and is {mode.held_back_by}" if mode.held_back_by else ""
        yield f"{mode.label} ({setting}) gives {mode.speedup:.2f}x ({mode.step_time_s * 1e3:.1f} ms){more}{held}."
    alone = one.bf16_products_s + one.other_products_s
    if one.profiled_products_s and abs(alone / one.profiled_products_s - 1) > UNLIKE:
        yield (
            f"In the step's profile all products take {one.profiled_products_s * 1e3:.1f} ms, and timed alone those of "
            f"the linear layers take {alone * 1e3:.1f}: the bound is no better than that."
        )
