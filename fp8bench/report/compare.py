"""The comparison: records joined with prices, held against a reference row. Numbers only; tables.py gives them
looks.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from fp8bench.pricing import cost
from fp8bench.report.measurement import Measurement
from fp8bench.report.measurement_row import to_row
from fp8bench.report.options import CompareOptions, Reference, narrowed
from fp8bench.report.row import Comparison, Row
from fp8bench.report.select import select
from fp8bench.report.systems import Likeness, likeness, told_apart
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record

if TYPE_CHECKING:
    from fp8bench.stats.estimate import Estimate

MIXED_DATES_DAYS = 90


def _as_it_is(record: Record) -> Record:
    return record


def compare(
    records: Sequence[Record], catalog: Catalog, options: CompareOptions, whole: Callable[[Record], Record] = _as_it_is
) -> Comparison:
    """records: those of the instances in `options`, oldest first; `whole` gives a record with its samples, and is asked
    for those alone that are shown.

    Raises UsageError when an instance has no record, the reference that was asked for is not there, or the records
    are of unlike work and `allow_mismatch` is not set.
    """
    chosen = [
        Measurement(tuple(map(whole, measurement.rounds)), measurement.stopped)
        for measurement in select(records, options.every, options.workload, options.batch_size)
    ]
    _require_some([measurement.latest for measurement in chosen], options)
    found = {measurement.latest.run_id: measurement.seconds_per_unit() for measurement in chosen}
    rows = told_apart([to_row(one, found[one.latest.run_id], catalog, options) for one in chosen])
    reference = _find_reference(rows, options.reference)
    latest = [measurement.latest for measurement in chosen]
    rows = _refuse_or_mark_unlike_work(rows, reference, latest, options.allow_mismatch)
    warnings = []
    if reference is None:
        wanted = options.reference
        warnings.append(
            f"no ok record of {wanted.instance}:{wanted.mode} to hold the rows against, so gains are left out; "
            "name another row with --reference"
        )
    else:
        of = {record.run_id: record for record in latest}
        like = {row.run_id: likeness(of[row.run_id], of[reference.run_id], options.allow_mismatch) for row in rows}
        rows = [
            _held_against(row, reference, found[row.run_id], found[reference.run_id], like[row.run_id]) for row in rows
        ]
    order = {name: place for place, name in enumerate(options.instances)}
    rows.sort(key=lambda row: (order[row.instance], row.status != "ok", row.emulated, -(row.throughput_per_s or 0)))
    warnings += _mixed_dates(rows)
    return Comparison(rows=tuple(rows), warnings=tuple(warnings))


def _require_some(chosen: Sequence[Record], options: CompareOptions) -> None:
    present = {record.instance for record in chosen}
    for name in options.instances:
        if name not in present:
            raise UsageError(
                f"no record{narrowed(options.workload, options.batch_size)} for instance {name!r}",
                f"Run `fp8bench run --instance {name}` there, or put a figure in with `fp8bench import`",
            )


def _find_reference(rows: Sequence[Row], wanted: Reference) -> Row | None:
    """The best row that fits: a gain over a slow variant of the baseline would flatter.

    Raises UsageError when the user named a row that is not there.
    """
    fitting = [
        row
        for row in rows
        if row.status == "ok"
        and row.instance == wanted.instance
        and wanted.mode in (row.mode, row.mode_label)
        and wanted.compile in (None, row.compile)
    ]
    if fitting:
        return max(fitting, key=lambda row: row.units_per_usd or row.throughput_per_s or 0)
    if wanted.asked_for:
        there = ", ".join(sorted({f"{row.instance}:{row.mode_label}" for row in rows if row.status == "ok"}))
        raise UsageError(
            f"no ok record of {wanted.instance}:{wanted.mode} to be the reference", f"There are: {there or 'none'}"
        )
    return None


def _refuse_or_mark_unlike_work(
    rows: Sequence[Row], reference: Row | None, records: Sequence[Record], allow_mismatch: bool
) -> list[Row]:
    """The work to be like is the reference's, or where there is none that of the first ok row."""
    model = reference or next((row for row in rows if row.status == "ok"), None)
    if model is None:
        return list(rows)
    fingerprints = {record.run_id: record.fingerprint for record in records}
    expected = fingerprints[model.run_id]
    marked = []
    for row in rows:
        found = fingerprints[row.run_id]
        differing = _differing(found, expected) if row.status == "ok" else []
        if differing and not allow_mismatch:
            raise UsageError(
                f"{row.instance}:{row.mode_label} and {model.instance}:{model.mode_label} did unlike work: "
                f"{_tell(differing, found, expected)}",
                "Compare like with like (--workload chooses one), or say --allow-mismatch to see them marked",
            )
        mark = (f"unlike the reference in {', '.join(differing)}",) if differing else ()
        marked.append(row.model_copy(update={"marks": (*row.marks, *mark)}))
    return marked


def _held_against(
    row: Row,
    reference: Row,
    found: "Estimate | None",
    reference_found: "Estimate | None",
    like: Likeness,
) -> Row:
    """found: seconds a unit takes in the row, and in the reference. like: whether machine and software allow a
    verdict.
    """
    marks = [*row.marks, *like.marks]
    if row.batch_size != reference.batch_size:
        marks.append(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        workers = "GPUs" if row.device == "cuda" else "processes"
        marks.append(f"{row.world_size} {workers}, reference {reference.world_size}")
    is_reference = row.run_id == reference.run_id
    update: dict[str, object] = {"marks": tuple(marks), "is_reference": is_reference}
    # A CPU's time, or an emulation's, says nothing about a GPU's or about fp8: such rows have no rank.
    comparable = like.verdict and row.device == reference.device and not row.emulated and not reference.emulated
    if not (comparable and row.throughput_per_s and reference.throughput_per_s):
        return row.model_copy(update=update)
    speedup = row.throughput_per_s / reference.throughput_per_s
    interval = None
    if found is not None and reference_found is not None and not is_reference:
        # Imported here, as in measurement.py: numpy takes a moment, and published figures have no samples.
        from fp8bench.stats.ratio import ratio

        held = ratio(found, reference_found)
        update |= {"verdict": held.verdict, "verdict_why": held.why}
        if held.low is not None and held.high is not None:
            interval = (1 / held.high, 1 / held.low)
    update |= {"speedup_vs_reference": speedup, "speedup_ci_vs_reference": interval}
    if reference.units_per_usd:
        update["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(row.throughput_per_s, reference.units_per_usd)
        if row.units_per_usd:
            update["gain_vs_reference"] = gain = cost.gain(row.units_per_usd, reference.units_per_usd)
            # Prices are exact, so the gain is as uncertain as the speed-up is.
            update["gain_ci_vs_reference"] = interval and tuple((1 + gain) * end / speedup - 1 for end in interval)
    return row.model_copy(update=update)


def _differing(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


def _tell(names: Sequence[str], fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name} ({fingerprint.get(name)} and {expected.get(name)})" for name in names)


def _mixed_dates(rows: Sequence[Row]) -> list[str]:
    dates = [row.price_as_of for row in rows if row.price_as_of is not None]
    if not dates or (max(dates) - min(dates)).days <= MIXED_DATES_DAYS:
        return []
    return [
        f"prices are from {min(dates)} to {max(dates)}, more than {MIXED_DATES_DAYS} days apart; "
        "--price-as-of puts all rows on one day"
    ]
