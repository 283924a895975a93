"""The rows that a user requests: filtered, at their best batch size, with what the job takes, on or off the Pareto
front of the rows that are shown, and grouped. Gains stay those of the comparison, also over rows that are not shown.
"""

import math
import operator
from collections.abc import Callable, Sequence

from fp8bench import registry
from fp8bench.config.options import quoted
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.columns import EVERY, NOTES, OF_A_JOB
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.view import Condition, View
from fp8bench.pricing.cost import front, job_hours
from fp8bench.records.select import grouped as by
from fp8bench.schema.errors import UsageError, nearest

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

SAME = 1e-9
"""The share within which a filter considers two numbers equal, because one was rounded by its unit."""


def require_columns(view: View) -> None:
    """Raise UsageError for a column that is unknown or needs a job, and for two views at once."""
    if view.wide and view.columns:
        raise UsageError("--wide and --columns choose columns both", "Give one of them")
    if view.best_batch and view.group_by == "batch":
        raise UsageError("--best-batch and --group-by batch are two views of batch sizes", "Give one of them")
    # Notes are shown, but nothing is filtered by them.
    shown, others = (*EVERY, NOTES), view.named[len(view.columns) :]
    for name, known in (*((name, shown) for name in view.columns), *((name, tuple(EVERY)) for name in others)):
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
        # Hidden modes are kept to show what the gate refuses.
        hidden = {entry.name for entry in registry.modes().values() if entry.hidden}
        rows = [row for row in rows if row.mode not in hidden] or rows
    if not rows:
        words = " ".join(f"--filter {quoted(one.words)}" for one in conditions)
        raise UsageError(f"no row is left by {words}", "Correct a filter, or omit it")
    if view.best_batch:
        rows = best_batches(rows, of_each_machine=view.group_by == "machine")
    rows = with_front([row.model_copy(update=_of_job_and_budget(row, view)) for row in rows])
    name = "each mode at its best batch" if view.best_batch and view.group_by is None else ""
    return comparison.model_copy(update={"rows": tuple(rows), "name": name})


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


def grouped(comparison: Comparison, column: str) -> list[Comparison]:
    """Return a comparison for each value of the column, in the order of their first rows, of batch sizes from the
    smallest. The answer is that of all rows, and goes with the last.
    """
    by_machine = column == "machine"
    value = (lambda row: row.machine) if by_machine else EVERY[column].value
    groups = list(by(comparison.rows, value).values())
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
            unnamed = ([mark for mark in row.marks if not mark.startswith("machine ")] for row in rows)
            rows = [row.model_copy(update={"marks": tuple(left)}) for row, left in zip(rows, unnamed, strict=True)]
        tables.append(Comparison(rows=tuple(with_front(rows)), name=f"{column}: {name}", warnings=comparison.warnings))
    of_all = {"answer": comparison.answer, "published": comparison.published}
    return [*tables[:-1], tables[-1].model_copy(update=of_all)]


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
    near = abs(value - wanted) <= SAME * abs(wanted)
    return COMPARE[condition.operator](wanted if near else value, wanted)


def best_batches(rows: Sequence[Row], of_each_machine: bool = False) -> list[Row]:
    """Return for each mode on each instance, with one execution and number of GPUs, the batch size that buys most for a
    dollar (without prices, the fastest). What did not run is omitted if the same mode ran at any size.
    of_each_machine: whether each machine of an instance has its own best.
    """

    def mode(row: Row) -> tuple[object, ...]:
        return row.instance, row.mode, row.recipe, row.machine if of_each_machine else None

    def variant(row: Row) -> tuple[object, ...]:
        # What is predicted of several GPUs may rest on one, whose ranks nothing joined.
        joined = row.joined if row.measured_on is None else None
        return *mode(row), row.execution, row.attention, joined, row.world_size, row.workload

    ok = [row for row in rows if row.status == "ok"]
    best = (
        max(of, key=lambda row: row.units_per_usd or row.throughput_per_s or 0.0) for of in by(ok, variant).values()
    )
    kept, ran = {row.run_id for row in best}, set(map(mode, ok))
    return [row for row in rows if row.run_id in kept or (row.status != "ok" and mode(row) not in ran)]


def with_front(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, those with a price on or off the front of time against cost, among rows that count the same unit
    on the same kind of device.
    """
    priced = [row for row in rows if row.units_per_usd and row.throughput_per_s]
    on_front: dict[str, bool] = {}
    for alike in by(priced, lambda row: (row.unit, row.device)).values():
        points = [(1 / (row.throughput_per_s or 1.0), 1 / (row.units_per_usd or 1.0)) for row in alike]
        on_front |= {row.run_id: on for row, on in zip(alike, front(points), strict=True)}
    return [row.model_copy(update={"pareto": on_front.get(row.run_id)}) for row in rows]
