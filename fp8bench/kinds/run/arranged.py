"""The rows that a user requests, in the requested order: filtered, at their best batch size, with what the job takes,
on or off the Pareto front, sorted, and grouped.

Gains stay those of the comparison: rows that are not shown were compared too. The Pareto front is that of the rows that
are shown.
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
from fp8bench.kinds.view import Budget, Condition, View
from fp8bench.pricing.cost import front, job_hours
from fp8bench.schema.errors import UsageError, nearest

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

_SAME = 1e-9
"""The share within which a filter considers two numbers equal, because one was rounded by its unit."""


def require_columns(view: View, job: float | None) -> None:
    """Raise UsageError for a column that is unknown, that cannot be sorted or filtered by, or that needs a job, and for
    two views at once.
    """
    if view.wide and view.columns:
        raise UsageError("--wide and --columns choose columns both", "Give one of them")
    if view.best_batch and view.group_by == "batch":
        raise UsageError("--best-batch and --group-by batch are two views of batch sizes", "Give one of them")
    for name in view.columns:
        _require_column(name, (*EVERY, NOTES))
    for name in view.named:
        if name != NOTES or name not in view.columns:
            _require_column(name, tuple(EVERY))
        if name in OF_A_JOB and job is None:
            raise UsageError(f"column {name!r} is of a job, and none is given", "Give one, as --job 90M, or omit it")


def _require_column(name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = nearest(name, known)
        hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise UsageError(f"unknown column {name!r}", f"{hint}There are: {', '.join(known)}")


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
    if options.job is not None:
        rows = [with_job(row, options.job) for row in rows]
    if options.budget is not None:
        rows = [with_budget(row, options.budget) for row in rows]
    rows = with_front(rows)
    name = "each mode at its best batch" if view.best_batch and view.group_by is None else ""
    return comparison.model_copy(
        update={"rows": tuple(rows if view.sort is None else in_order(rows, view.sort)), "name": name}
    )


def grouped(comparison: Comparison, column: str) -> list[Comparison]:
    """Return a comparison for each value of the column, in the order of their first rows, of batch sizes from the
    smallest. The answer is that of all rows, and goes with the last.
    """
    found: dict[object, list[Row]] = {}
    for row in comparison.rows:
        if column == "machine":
            # A group of one machine has it in its name.
            unnamed = tuple(mark for mark in row.marks if not mark.startswith("machine "))
            found.setdefault(row.machine, []).append(row.model_copy(update={"marks": unnamed}))
        else:
            found.setdefault(EVERY[column].value(row), []).append(row)
    groups = sorted(found.values(), key=lambda rows: rows[0].batch_size) if column == "batch" else list(found.values())
    tables = [
        Comparison(rows=tuple(with_front(rows)), name=f"{column}: {_named(column, rows)}", warnings=comparison.warnings)
        for rows in groups
    ]
    last = {"answer": comparison.answer, "published": comparison.published}
    return [*tables[:-1], *(table.model_copy(update=last) for table in tables[-1:])]


def _named(column: str, rows: Sequence[Row]) -> str:
    # A machine may have been given a label after its first records.
    if column == "machine":
        label = next((row.machine_label for row in rows if row.machine_label), None)
        return f"{label} ({rows[0].machine})" if label else rows[0].machine or "unknown"
    value = EVERY[column].value(rows[0])
    return "unknown" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def holds(condition: Condition, row: Row) -> bool:
    """Return whether the row meets the condition. An unknown value is equal to nothing, and neither above nor below it.
    Raises UsageError if the operator or the value is not of the column's kind.
    """
    column = EVERY[condition.column]
    if column.kind in ("word", "verdict"):
        if condition.operator not in ("=", "!="):
            raise UsageError(
                f"--filter {quoted(condition.words)}: {condition.column} is a word, which is neither more nor less",
                f"Give, for example, --filter {condition.column}={condition.value}",
            )
        same = condition.value in (column.value(row), *column.names(row))
        return same == (condition.operator == "=")
    try:
        wanted = float(condition.value.replace(",", ""))
    except ValueError:
        wanted = math.nan
    if math.isnan(wanted):
        raise UsageError(
            f"--filter {quoted(condition.words)}: {condition.column} is a number, and {condition.value!r} is none",
            f"Give, for example, --filter '{condition.column}>0'",
        )
    value = column.value(row)
    if not isinstance(value, (int, float)):
        return False
    near = abs(value - wanted) <= _SAME * abs(wanted)
    return COMPARE[condition.operator](wanted if near else value, wanted)


def best_batches(rows: Sequence[Row], of_each_machine: bool = False) -> list[Row]:
    """Return for each mode on each instance, with one execution and number of GPUs, the batch size that buys most for a
    dollar (without prices, the fastest). What did not run is omitted if the same mode ran at any size.
    of_each_machine: whether each machine of an instance has its own best.
    """

    def mode(row: Row) -> tuple[object, ...]:
        return row.instance, row.mode, row.recipe, row.machine if of_each_machine else None

    def worth(row: Row) -> float:
        return row.units_per_usd or row.throughput_per_s or 0.0

    alike: dict[object, list[Row]] = {}
    for row in (row for row in rows if row.status == "ok"):
        key = (*mode(row), row.execution, row.attention, row.joined, row.world_size, row.workload)
        alike.setdefault(key, []).append(row)
    kept = {max(found, key=worth).run_id for found in alike.values()}
    ran = {mode(row) for row in rows if row.status == "ok"}
    return [row for row in rows if row.run_id in kept or (row.status != "ok" and mode(row) not in ran)]


def with_job(row: Row, units: float) -> Row:
    """Return the row with the job's time and cost, except for an emulation, whose time is not that of fp8."""
    if row.throughput_per_s is None or row.step_time_s is None or row.emulated:
        return row.model_copy(update={"job_units": units})
    hours, usd = job_hours(units, row.throughput_per_s), row.usd_per_hour
    ci = row.step_time_ci_s and tuple(hours * end / row.step_time_s for end in row.step_time_ci_s)
    return row.model_copy(
        update={
            "job_units": units,
            "job_hours": hours,
            "job_hours_ci": ci,
            "job_usd": None if usd is None else hours * usd,
            "job_usd_ci": None if usd is None or ci is None else tuple(end * usd for end in ci),
        }
    )


def with_budget(row: Row, budget: Budget) -> Row:
    """Return the row with what the budget trains, and how long one instance takes to spend it."""
    update: dict[str, float | int] = {"budget_usd": budget.usd}
    if row.units_per_usd and row.usd_per_hour:
        hours = budget.usd / row.usd_per_hour
        update |= {"budget_units": row.units_per_usd * budget.usd, "budget_hours": hours}
        if budget.hours is not None:
            update["budget_instances"] = math.ceil(hours / budget.hours)
    return row.model_copy(update=update)


def with_front(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, those with a price on or off the front of time against cost, among rows that count the same unit
    on the same kind of device.
    """
    points: dict[object, list[tuple[str, tuple[float, float]]]] = {}
    for row in rows:
        if row.units_per_usd and row.throughput_per_s:
            point = 1 / row.throughput_per_s, 1 / row.units_per_usd
            points.setdefault((row.unit, row.device), []).append((row.run_id, point))
    on_front = {
        run_id: on
        for group in points.values()
        for (run_id, _), on in zip(group, front([point for _, point in group]), strict=True)
    }
    return [row.model_copy(update={"pareto": on_front.get(row.run_id)}) for row in rows]


def in_order(rows: Sequence[Row], sort: str) -> list[Row]:
    """Return the rows with the column's best first (after a `-` last), then unknown values, then what did not run."""
    name, back = sort.removeprefix("-"), sort.startswith("-")
    column = EVERY[name]

    def key(row: Row) -> tuple[str, float]:
        value = column.value(row)
        return (value, 0.0) if isinstance(value, str) else ("", float(value or 0))

    known = [row for row in rows if row.status == "ok" and column.value(row) is not None]
    rest = [row for row in rows if row.status != "ok" or column.value(row) is None]
    best_first = sorted(known, key=key, reverse=(column.better == "more") != back)
    return [*best_first, *sorted(rest, key=lambda row: row.status != "ok")]
