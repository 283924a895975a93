"""The columns that a table of runs can have, by the names that --columns, --filter and --group-by use: the text of a
cell, and the number or word that rows are filtered by. A number is in the unit of its heading: `step<100` is in
milliseconds, `gain>10` in per cent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fp8bench import registry
from fp8bench.kinds.priced import WHAT_IF
from fp8bench.kinds.run.row import Row
from fp8bench.schema.execution import suffix
from fp8bench.tables.document import Cells, Tone
from fp8bench.tables.study import Column
from fp8bench.tables.written import Interval, brief_count, change, rate, time_said, with_interval


@dataclass(frozen=True)
class RowColumn(Column[Row]):
    """A column. heading: with {units} and {unit} for what rows count. cell: writes the text, if it is not that of the
    value alone. names: for a word, its other names in a filter. optional: whether the wide table omits it if no row has
    it.
    """

    cell: Callable[[Row], str] | None = None
    names: Callable[[Row], tuple[str | None, ...]] = lambda _row: ()
    optional: bool = False

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
of_a_job = partial(RowColumn, kind="interval", optional=True)


def _job(value: float | None, interval: Interval | None) -> str:
    form = ",.0f" if value is None or value >= 100 else ",.1f" if value >= 10 else ",.2f" if value >= 1 else ".3g"
    return with_interval(value, interval, form)


def _price_date(row: Row) -> str | None:
    undated = WHAT_IF if row.price_source == WHAT_IF else "undated"
    said = f"{row.price_as_of or undated}{f', {row.provider}' if row.provider else ''}"
    return None if row.usd_per_hour is None else said


COLUMNS: dict[str, RowColumn] = {
    "instance": word("instance", lambda r: r.instance),
    "mode": word(
        "mode", lambda r: r.mode_label, names=lambda r: (r.mode, f"{r.mode}{suffix(r.execution)}", r.variant_label)
    ),
    "execution": word("execution", lambda r: r.execution, optional=True),
    "attention": word("attention", lambda r: r.attention, optional=True),
    "joined": word("ranks joined by", lambda r: r.joined, optional=True),
    "switches": word("TE switches", lambda r: r.te_switches, optional=True),
    "batch": RowColumn("batch x GPUs", lambda r: r.batch_size, cell=lambda r: f"{r.batch_size} x {r.world_size}"),
    "gpus": RowColumn("GPUs", lambda r: r.world_size, "d"),
    "rounds": RowColumn(
        "rounds", lambda r: r.rounds if r.status == "ok" and r.source == "measured" else None, "d", optional=True
    ),
    "value": RowColumn("{units}/USD", lambda r: r.units_per_usd, rate),
    "gain": RowColumn(
        "gain (95 %)",
        lambda r: r.gain_vs_reference,
        kind="interval",
        scale=100,
        cell=lambda r: "reference" if r.is_reference else change(r.gain_vs_reference, r.gain_ci_vs_reference),
        tone=tone,
    ),
    "verdict": RowColumn("verdict", lambda r: r.verdict, kind="verdict", optional=True, tone=tone),
    "speed-up": RowColumn(
        "speed-up (95 %)",
        lambda r: r.speedup_vs_reference,
        ".2f",
        "interval",
        after="x",
        interval=lambda r: r.speedup_ci_vs_reference,
    ),
    "step": RowColumn(
        "step, ms (95 % interval)",
        lambda r: r.step_time_s,
        ".1f",
        "interval",
        scale=1e3,
        interval=lambda r: r.step_time_ci_s,
    ),
    "throughput": RowColumn("{units}/s", lambda r: r.throughput_per_s, rate),
    "per-gpu": RowColumn("{units}/s/GPU", lambda r: r.throughput_per_gpu_per_s, rate),
    "price": RowColumn("USD/h", lambda r: r.usd_per_hour, ",.2f"),
    "price-as-of": word("price as of", _price_date),
    "cost": RowColumn("USD/M {units}", lambda r: r.usd_per_million_units, ",.3f"),
    "break-even": RowColumn("break-even USD/h", lambda r: r.break_even_usd_per_hour, ",.2f"),
    "hours": of_a_job("hours (95 %)", lambda r: r.job_hours, cell=lambda r: _job(r.job_hours, r.job_hours_ci)),
    "usd": of_a_job("USD (95 %)", lambda r: r.job_usd, cell=lambda r: _job(r.job_usd, r.job_usd_ci)),
    "memory": RowColumn("peak GiB", lambda r: r.peak_memory_bytes, ".1f", scale=2**-30, optional=True),
    "mfu-bf16": RowColumn("MFU bf16", lambda r: r.mfu_bf16, ".1f", scale=100, after=" %", optional=True),
    "mfu-fp8": RowColumn("MFU fp8", lambda r: r.mfu_fp8, ".1f", scale=100, after=" %", optional=True),
    "energy": RowColumn("J/{unit}", lambda r: r.joules_per_unit, ".3g", optional=True),
    "per-kwh": RowColumn("{units}/kWh", lambda r: r.units_per_kwh, rate, optional=True),
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
    "needed": RowColumn("needed", lambda r: r.budget_instances, ",d", optional=True),
}
"""Of a row with a budget: what it trains, how long one instance takes, and how many spend it in time."""

OF_A_JOB = ("hours", "usd")
