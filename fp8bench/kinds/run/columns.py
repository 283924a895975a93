"""The columns that a table of runs can have, by name: the text of a cell, and the number or word that rows are sorted
and filtered by.

The names are used by --columns, --sort, --filter and --group-by. A number is in the unit of its heading: `--filter
'step<100'` is in milliseconds, `gain>10` in per cent.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fp8bench import registry
from fp8bench.kinds.priced import WHAT_IF
from fp8bench.kinds.run.row import Row
from fp8bench.schema.execution import suffix
from fp8bench.tables.document import NOTHING, CellKind, Cells, Rows, Tone
from fp8bench.tables.written import Interval, change, number, rate, with_interval

Value = float | str | None


class RowColumn(NamedTuple):
    """A column. heading: with {units} and {unit} for what rows count. cell: the text that is shown. value: the same,
    unrounded. names: for a word, its other names in a filter. optional: whether the wide table omits it if no row has
    it. greater_first: whether greater is better. toned: whether it has the tone of the gain.
    """

    heading: str
    cell: Callable[[Row], str]
    value: Callable[[Row], Value]
    kind: CellKind = "quantity"
    names: Callable[[Row], tuple[str, ...]] = lambda _row: ()
    optional: bool = False
    greater_first: bool = False
    toned: bool = False

    def column(self, rows: Sequence[Row]) -> Cells:
        heading = self.heading.format(units=units_of(rows), unit=units_of(rows).removesuffix("s"))
        return Rows(rows).column(heading, self.cell, self.kind, tone=tone if self.toned else None)


def units_of(rows: Sequence[Row]) -> str:
    """Return e.g. `images`, or `units` if rows count different things. If no row ran, the workloads decide."""
    ran = [row.unit for row in rows if row.unit]
    units = {*(ran or (registry.unit_of(row.workload) or "units" for row in rows))}
    return units.pop() if len(units) == 1 else "units"


def tone(row: Row) -> Tone:
    """Return the tone of a gain and of its verdict; inconclusive ones have none."""
    if row.is_reference or row.gain_vs_reference is None:
        return ""
    if row.verdict is not None:
        return "good" if row.verdict == "better value" else "bad" if row.verdict == "worse value" else ""
    return "good" if row.gain_vs_reference > 0 else "bad"


def _word(of: Callable[[Row], str | None], heading: str, optional: bool = False) -> RowColumn:
    return RowColumn(heading, lambda row: of(row) or NOTHING, of, "word", optional=optional)


def _number(
    heading: str,
    of: Callable[[Row], float | None],
    form: str,
    scale: float = 1,
    after: str = "",
    optional: bool = False,
    greater_first: bool = False,
) -> RowColumn:
    """Return a column of numbers. scale: the factor from the row's unit to the heading's."""
    return RowColumn(
        heading,
        lambda row: number(of(row), form, scale, after),
        lambda row: _scaled(of(row), scale),
        optional=optional,
        greater_first=greater_first,
    )


def _rate(heading: str, of: Callable[[Row], float | None], optional: bool = False) -> RowColumn:
    return RowColumn(heading, lambda row: rate(of(row)), of, optional=optional, greater_first=True)


def _of_a_job(heading: str, of: Callable[[Row], float | None], interval: Callable[[Row], Interval | None]) -> RowColumn:
    """Return a column of a job, with at least three digits, and without decimals from 100."""

    def cell(row: Row) -> str:
        value = of(row)
        form = ",.0f" if value is None or value >= 100 else ",.1f" if value >= 10 else ",.2f" if value >= 1 else ".3g"
        return with_interval(value, interval(row), form)

    return RowColumn(heading, cell, of, "interval", optional=True)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _gain(row: Row) -> str:
    return "reference" if row.is_reference else change(row.gain_vs_reference, row.gain_ci_vs_reference)


def _price_date(row: Row) -> str:
    if row.usd_per_hour is None:
        return NOTHING
    return str(row.price_as_of) if row.price_as_of else WHAT_IF if row.price_source == WHAT_IF else "undated"


def _pareto(row: Row) -> str:
    return NOTHING if row.pareto is None else "yes" if row.pareto else "no"


def _measured_rounds(row: Row) -> int | None:
    return row.rounds if row.status == "ok" and row.source == "measured" else None


def step(row: Row) -> str:
    """Write the step in milliseconds, with its interval."""
    return with_interval(row.step_time_s, row.step_time_ci_s, ".1f", scale=1e3)


COLUMNS: dict[str, RowColumn] = {
    "instance": _word(lambda r: r.instance, "instance"),
    "mode": _word(lambda r: r.mode_label, "mode")._replace(
        names=lambda r: (r.mode, f"{r.mode}{suffix(r.execution)}", r.variant_label),
    ),
    "execution": _word(lambda r: r.execution, "execution", optional=True),
    "attention": _word(lambda r: r.attention, "attention", optional=True),
    "joined": _word(lambda r: r.joined, "ranks joined by", optional=True),
    "switches": _word(lambda r: r.te_switches, "TE switches", optional=True),
    "batch": RowColumn("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}", lambda r: r.batch_size),
    "gpus": _number("GPUs", lambda r: r.world_size, "d"),
    "rounds": _number("rounds", _measured_rounds, "d", optional=True),
    "value": _rate("{units}/USD", lambda r: r.units_per_usd),
    "gain": RowColumn(
        "gain (95 %)",
        _gain,
        lambda r: _scaled(r.gain_vs_reference, 100),
        "interval",
        greater_first=True,
        toned=True,
    ),
    "verdict": RowColumn(
        "verdict", lambda r: r.verdict or NOTHING, lambda r: r.verdict, "verdict", optional=True, toned=True
    ),
    "speed-up": RowColumn(
        "speed-up (95 %)",
        lambda r: with_interval(r.speedup_vs_reference, r.speedup_ci_vs_reference, ".2f", after="x"),
        lambda r: r.speedup_vs_reference,
        "interval",
        greater_first=True,
    ),
    "step": RowColumn("step, ms (95 % interval)", step, lambda r: _scaled(r.step_time_s, 1e3), "interval"),
    "throughput": _rate("{units}/s", lambda r: r.throughput_per_s),
    "per-gpu": _rate("{units}/s/GPU", lambda r: r.throughput_per_gpu_per_s),
    "price": _number("USD/h", lambda r: r.usd_per_hour, ",.2f"),
    "price-as-of": _word(_price_date, "price as of"),
    "cost": _number("USD/M {units}", lambda r: r.usd_per_million_units, ",.3f"),
    "break-even": _number("break-even USD/h", lambda r: r.break_even_usd_per_hour, ",.2f", greater_first=True),
    "hours": _of_a_job("hours (95 %)", lambda r: r.job_hours, lambda r: r.job_hours_ci),
    "usd": _of_a_job("USD (95 %)", lambda r: r.job_usd, lambda r: r.job_usd_ci),
    "memory": _number("peak GiB", lambda r: r.peak_memory_bytes, ".1f", scale=2**-30, optional=True),
    "mfu-bf16": _number("MFU bf16", lambda r: r.mfu_bf16, ".1f", 100, " %", optional=True, greater_first=True),
    "mfu-fp8": _number("MFU fp8", lambda r: r.mfu_fp8, ".1f", 100, " %", optional=True, greater_first=True),
    "energy": _number("J/{unit}", lambda r: r.joules_per_unit, ".3g", optional=True),
    "per-kwh": _rate("{units}/kWh", lambda r: r.units_per_kwh, optional=True),
}
"""Columns in the order of the wide table."""

OF_ITS_OWN: dict[str, RowColumn] = {
    "faster": COLUMNS["speed-up"],
    "per-usd": COLUMNS["gain"],
    "pareto": RowColumn("Pareto front", _pareto, _pareto, "word"),
    "workload": _word(lambda r: r.workload, "workload"),
    "micro-batches": _number("micro-batches", lambda r: r.grad_accumulation, "d"),
    "source": _word(lambda r: r.source, "source"),
    "status": _word(lambda r: r.outcome, "status"),
    "machine": _word(lambda r: r.machine_label or r.machine, "machine")._replace(
        names=lambda r: (r.machine or NOTHING,)
    ),
    "session": _word(lambda r: r.session_id, "session"),
}
"""Columns that are only shown if they are named."""

NOTES = "notes"
EVERY = {**COLUMNS, **OF_ITS_OWN}
NAMES = (*EVERY, NOTES)
"""The names that a view may use."""

OF_A_JOB = ("hours", "usd")
