"""The columns that a table of runs can have, by the names that --columns, --filter and --group-by use, in the unit of
their headings; and the rows that a user requests: filtered, at their best batch size, with what the job takes, on or
off the Pareto front of the rows that are shown, and grouped. Gains stay those of the comparison of all rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fp8bench import registry
from fp8bench.config.options import quoted
from fp8bench.kinds.kind import OPERATORS, CompareOptions, Condition, View
from fp8bench.kinds.priced import WHAT_IF
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.row import Row
from fp8bench.pricing.cost import front, job_hours
from fp8bench.records.select import grouped
from fp8bench.schema.errors import UsageError, nearest
from fp8bench.schema.execution import suffix
from fp8bench.tables.document import Cells, Tone
from fp8bench.tables.study import Column
from fp8bench.tables.written import brief_count, change, rate, time_said


@dataclass(frozen=True)
class RowColumn(Column[Row]):
    """A column. heading: with {units} and {unit} for what rows count. cell: writes a text other than the value's.
    names: for a word, its other names in a filter.
    """

    cell: Callable[[Row], str] | None = None
    names: Callable[[Row], tuple[str | None, ...]] = lambda _row: ()

    def text(self, row: Row | None) -> str:
        return self.cell(row) if self.cell and row is not None else super().text(row)

    def cells(self, rows: Sequence[Row | None], of: str = "") -> Cells:
        units = units_of([row for row in rows if row is not None])
        heading = self.heading.format(units=units, unit=units.removesuffix("s"))
        return super().cells(rows, of)._replace(heading=heading)


def units_of(rows: Sequence[Row]) -> str:
    """Return e.g. `images`, or `units` if rows count different things. If no row ran, the workloads decide."""
    ran = [row.unit for row in rows if row.unit]
    units = {*(ran or (registry.unit_of(row.workload) or "units" for row in rows))}
    return units.pop() if len(units) == 1 else "units"


def tone(row: Row) -> Tone:
    """Return the tone of a gain and of its verdict; inconclusive ones have none."""
    if row.is_reference or row.gain_vs_reference is None or row.verdict == "inconclusive":
        return ""
    return "good" if row.verdict == "better value" or (row.verdict is None and row.gain_vs_reference > 0) else "bad"


word = partial(RowColumn, kind="word")


def _of_job(value: float) -> str:
    return format(value, ",.0f" if value >= 100 else ",.1f" if value >= 10 else ",.2f" if value >= 1 else ".3g")


def price_told(row: Row) -> str | None:
    """Write e.g. `2026-11-09, aws`: a price's day and provider, and how it is paid if not on demand, as is usual."""
    if row.usd_per_hour is None:
        return None
    price, asked = row.priced.price, row.priced.instead_of
    day = WHAT_IF if row.price_source == WHAT_IF else str(row.price_as_of or "undated")
    paid = price.purchase if price and price.purchase != "on_demand" else ""
    return ", ".join(filter(None, (day, row.provider, paid, asked and f"{asked} not listed: on-demand")))


COLUMNS: dict[str, RowColumn] = {
    "instance": word("instance", lambda r: r.instance),
    "mode": word(
        "mode", lambda r: r.mode_label, names=lambda r: (r.mode, f"{r.mode}{suffix(r.execution)}", r.variant_label)
    ),
    "execution": word("execution", lambda r: r.execution),
    "attention": word("attention", lambda r: r.attention),
    "joined": word("ranks joined by", lambda r: r.joined),
    "switches": word("TE switches", lambda r: r.te_switches),
    "batch": RowColumn("batch x GPUs", lambda r: r.batch_size, cell=lambda r: f"{r.batch_size} x {r.world_size}"),
    "gpus": RowColumn("GPUs", lambda r: r.world_size, "d"),
    "rounds": RowColumn("rounds", lambda r: r.rounds if r.status == "ok" and r.source == "measured" else None, "d"),
    "value": RowColumn("{units}/USD", lambda r: r.units_per_usd, rate),
    "gain": RowColumn(
        "gain (95 %)",
        lambda r: r.gain_vs_reference,
        scale=100,
        cell=lambda r: "reference" if r.is_reference else change(r.gain_vs_reference, r.gain_ci_vs_reference),
        tone=tone,
    ),
    "verdict": RowColumn("verdict", lambda r: r.verdict, kind="verdict", tone=tone),
    "speed-up": RowColumn(
        "speed-up (95 %)",
        lambda r: r.speedup_vs_reference,
        ".2f",
        after="x",
        interval=lambda r: r.speedup_ci_vs_reference,
    ),
    "step": RowColumn(
        "step, ms (95 % interval)", lambda r: r.step_time_s, ".1f", scale=1e3, interval=lambda r: r.step_time_ci_s
    ),
    "throughput": RowColumn("{units}/s", lambda r: r.throughput_per_s, rate),
    "per-gpu": RowColumn("{units}/s/GPU", lambda r: r.throughput_per_gpu_per_s, rate),
    "price": RowColumn("USD/h", lambda r: r.usd_per_hour, ",.2f"),
    "price-as-of": word("price as of", price_told),
    "cost": RowColumn("USD/M {units}", lambda r: r.usd_per_million_units, ",.3f"),
    "break-even": RowColumn("break-even USD/h", lambda r: r.break_even_usd_per_hour, ",.2f"),
    "hours": RowColumn("hours (95 %)", lambda r: r.job_hours, _of_job, interval=lambda r: r.job_hours_ci),
    "usd": RowColumn("USD (95 %)", lambda r: r.job_usd, _of_job, interval=lambda r: r.job_usd_ci),
    "memory": RowColumn("peak GiB", lambda r: r.peak_memory_bytes, ".1f", scale=2**-30),
    "mfu-bf16": RowColumn("MFU bf16", lambda r: r.mfu_bf16, ".1f", scale=100, after=" %"),
    "mfu-fp8": RowColumn("MFU fp8", lambda r: r.mfu_fp8, ".1f", scale=100, after=" %"),
    "energy": RowColumn("J/{unit}", lambda r: r.joules_per_unit, ".3g"),
    "per-kwh": RowColumn("{units}/kWh", lambda r: r.units_per_kwh, rate),
}
"""Columns in the order of the wide table."""

OF_ITS_OWN: dict[str, RowColumn] = {
    "faster": COLUMNS["speed-up"],
    "per-usd": COLUMNS["gain"],
    "pareto": word("Pareto front", lambda r: None if r.pareto is None else "yes" if r.pareto else "no"),
    "workload": word("workload", lambda r: r.workload),
    "micro-batches": RowColumn("micro-batches", lambda r: r.grad_accumulation, "d"),
    "source": word("source", lambda r: r.origin, names=lambda r: (r.source,)),
    "status": word("status", lambda r: r.outcome),
    "machine": word("machine", lambda r: r.machine_label or r.machine, names=lambda r: (r.machine,)),
    "session": word("session", lambda r: r.session_id),
}
"""Columns that are only shown if they are named."""

NOTES = "notes"
EVERY = {**COLUMNS, **OF_ITS_OWN}
NAMES = (*EVERY, NOTES)
"""The names that a view may use."""

OF_A_BUDGET = {
    "trains": RowColumn("{units} trained", lambda r: r.budget_units, brief_count),
    "one-takes": RowColumn("one takes", lambda r: r.budget_hours, time_said),
    "needed": RowColumn("needed", lambda r: r.budget_instances, ",d"),
}
"""Of a row with a budget: what it trains, how long one instance takes, and how many spend it in time."""

OF_A_JOB = ("hours", "usd")


def require_columns(view: View) -> None:
    """Raise UsageError for a column that is unknown or needs a job, and for two views at once."""
    if view.wide and view.columns:
        raise UsageError("--wide and --columns choose columns both", "Give one of them")
    if view.best_batch and view.group_by == "batch":
        raise UsageError("--best-batch and --group-by batch are two views of batch sizes", "Give one of them")
    others = filter(None, (view.group_by, *(one.column for one in view.conditions)))
    # Notes are shown, but nothing is filtered by them.
    for name, known in (*((name, NAMES) for name in view.columns), *((name, tuple(EVERY)) for name in others)):
        if name not in known:
            near = nearest(name, known)
            hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise UsageError(f"unknown column {name!r}", f"{hint}There are: {', '.join(known)}")
        if name in OF_A_JOB and view.job is None:
            raise UsageError(f"column {name!r} is of a job, and none is given", "Give one, as --job 90M, or omit it")


def arranged(comparison: Comparison, options: CompareOptions) -> Comparison:
    """Return the rows to show. Raises UsageError if no row is left, or if a condition does not apply to its column."""
    # A filter may ask for the front of all rows; what is shown is the front of the rows that are left.
    view, conditions = options.view, options.view.conditions
    rows = with_front(comparison.rows) if conditions else list(comparison.rows)
    for condition in conditions:
        rows = [row for row in rows if holds(condition, row)]
    if not options.every and not any(condition.column == "mode" for condition in conditions):
        hidden = registry.hidden_modes()
        rows = [row for row in rows if row.mode not in hidden] or rows
    if not rows:
        words = " ".join(f"--filter {quoted(one.words)}" for one in conditions)
        raise UsageError(f"no row is left by {words}", "Correct a filter, or omit it")
    if view.best_batch:
        rows = best_batches(rows, of_each_machine=view.group_by == "machine")
    rows = with_front([row.model_copy(update=_of_job_and_budget(row, view)) for row in rows])
    name = "each mode at its best batch" if view.best_batch and view.group_by is None else ""
    return replace(comparison, rows=tuple(rows), name=name)


def _of_job_and_budget(row: Row, view: View) -> dict[str, object]:
    units, budget, usd, step_s = view.job, view.budget, row.usd_per_hour, row.step_time_s
    update: dict[str, object] = {"job_units": units, "budget_usd": budget}
    # An emulation's time is not that of fp8.
    if units is not None and row.throughput_per_s is not None and step_s is not None and not row.emulated:
        hours = job_hours(units, row.throughput_per_s)
        ci = row.step_time_ci_s and tuple(hours * end / step_s for end in row.step_time_ci_s)
        update |= {"job_hours": hours, "job_hours_ci": ci}
        if usd is not None:
            update |= {"job_usd": hours * usd, "job_usd_ci": ci and tuple(end * usd for end in ci)}
    if budget is not None and row.units_per_usd and usd:
        hours = budget / usd
        update |= {"budget_units": row.units_per_usd * budget, "budget_hours": hours}
        if view.within is not None:
            update["budget_instances"] = math.ceil(hours / view.within) * row.nodes
    return update


def in_groups(comparison: Comparison, column: str) -> list[Comparison]:
    """Return a comparison for each value, sizes from the smallest; the last one has the answer of all rows."""
    by_machine = column == "machine"
    value = (lambda row: row.machine) if by_machine else EVERY[column].value
    groups = list(grouped(comparison.rows, value).values())
    if column == "batch":
        groups.sort(key=lambda rows: rows[0].batch_size)
    tables = []
    for rows in groups:
        known = value(rows[0])
        name = "unknown" if known is None else known if isinstance(known, str) else f"{known:.6g}"
        if by_machine:
            # A machine may have been given a label after its first records. Its group has it in its name.
            label = next((row.machine_label for row in rows if row.machine_label), None)
            name = f"{label} ({known})" if label else name
            left = (tuple(mark for mark in row.marks if not mark.startswith("machine ")) for row in rows)
            rows = [row.model_copy(update={"marks": marks}) for row, marks in zip(rows, left, strict=True)]
        tables.append(Comparison(rows=tuple(with_front(rows)), name=f"{column}: {name}", warnings=comparison.warnings))
    last = replace(comparison, rows=tables[-1].rows, name=tables[-1].name)
    return [*tables[:-1], last]


def holds(condition: Condition, row: Row) -> bool:
    """Return whether the row meets the condition. An unknown value is equal to nothing, and neither above nor below it.
    Raises UsageError if the operator or the value is not of the column's kind.
    """
    column, refused = EVERY[condition.column], f"--filter {quoted(condition.words)}: {condition.column} is a"
    if column.kind in ("word", "verdict"):
        if condition.operator not in ("=", "!="):
            example = f"Give, for example, --filter {condition.column}={condition.value}"
            raise UsageError(f"{refused} word, which is neither more nor less", example)
        same = condition.value in (column.value(row), *column.names(row))
        return same == (condition.operator == "=")
    try:
        wanted = float(condition.value.replace(",", ""))
    except ValueError:
        wanted = math.nan
    if math.isnan(wanted):
        example = f"Give, for example, --filter '{condition.column}>0'"
        raise UsageError(f"{refused} number, and {condition.value!r} is none", example)
    value = column.value(row)
    if not isinstance(value, (int, float)):
        return False
    # One of two equal numbers may have been rounded by its unit.
    near = abs(value - wanted) <= 1e-9 * abs(wanted)
    return OPERATORS[condition.operator](wanted if near else value, wanted)


def best_batches(rows: Sequence[Row], of_each_machine: bool = False) -> list[Row]:
    """Return for each mode on each instance, with one execution and number of GPUs, the batch size that buys most for a
    dollar (without prices, the fastest). What did not run, or may not fit, is omitted if the same mode ran at any size.
    """

    def mode(row: Row) -> tuple[object, ...]:
        return row.instance, row.mode, row.recipe, row.machine if of_each_machine else None

    def variant(row: Row) -> tuple[object, ...]:
        # What is predicted of several GPUs may rest on one, whose ranks nothing joined.
        joined = row.joined if row.measured_on is None else None
        return *mode(row), row.execution, row.attention, joined, row.world_size, row.workload

    ok = [row for row in rows if row.status == "ok" and row.fits]
    best = (
        max(of, key=lambda row: row.units_per_usd or row.throughput_per_s or 0) for of in grouped(ok, variant).values()
    )
    kept, ran = {row.run_id for row in best}, set(map(mode, ok))
    return [
        row for row in rows if row.run_id in kept or ((row.status != "ok" or not row.fits) and mode(row) not in ran)
    ]


def with_front(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, those with a price on or off the front of time against cost of alike rows (unit, device)."""
    priced = [row for row in rows if row.units_per_usd and row.throughput_per_s]
    on_front: dict[str, bool] = {}
    for alike in grouped(priced, lambda row: (row.unit, row.device)).values():
        points = [(1 / (row.throughput_per_s or 1.0), 1 / (row.units_per_usd or 1.0)) for row in alike]
        on_front |= {row.run_id: on for row, on in zip(alike, front(points), strict=True)}
    return [row.model_copy(update={"pareto": on_front.get(row.run_id)}) for row in rows]
