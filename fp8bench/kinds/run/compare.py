"""The comparison: records joined with prices, rows compared with a reference row. Numbers only; `document` shows
them.
"""

from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from fp8bench.kinds.kind import CompareOptions, narrowed
from fp8bench.kinds.run.judge import compared_with, distinguished, likeness
from fp8bench.kinds.run.row import Comparison, Row, to_row
from fp8bench.kinds.run.unit_cost import Priced, priced, pricing_day, unit_time
from fp8bench.pricing.missing import require_region
from fp8bench.records.named import Reference
from fp8bench.records.select import Measurement, select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record

MIXED_DATES_DAYS = 90


def _as_it_is(record: Record) -> Record:
    return record


def compare(
    records: Sequence[Record], catalog: Catalog, options: CompareOptions, whole: Callable[[Record], Record] = _as_it_is
) -> Comparison:
    """records: those of the instances in `options`, oldest first; `whole` gives a record with its samples, and is asked
    for those alone that are shown.

    Raises UsageError when an instance has no record, no price is of the region that was asked for, the reference that
    was asked for is not there, or the records are not comparable and `allow_mismatch` is not set.
    """
    require_region(options.region, catalog, options.instances)
    chosen = [
        Measurement(tuple(map(whole, measurement.rounds)), measurement.stopped)
        for measurement in select(records, options.every, options.workload, options.batch_size, options.optimizer)
    ]
    latest = [measurement.latest for measurement in chosen]
    _require_some(latest, options)
    day = pricing_day(latest, options)
    prices = {record.run_id: priced(record, catalog, options, day) for record in latest}
    found = {measurement.latest.run_id: unit_time(measurement) for measurement in chosen}
    rows = distinguished([to_row(one, found[one.latest.run_id], prices[one.latest.run_id], catalog) for one in chosen])
    reference = _find_reference(rows, options.reference)
    rows = _refuse_or_mark_unlike_work(rows, reference, latest, options.allow_mismatch)
    if reference is not None:
        of = {record.run_id: record for record in latest}
        like = {row.run_id: likeness(of[row.run_id], of[reference.run_id], options.allow_mismatch) for row in rows}
        rows = [
            compared_with(row, reference, found[row.run_id], found[reference.run_id], like[row.run_id]) for row in rows
        ]
    warnings = (
        *_without_reference(reference, options.reference),
        *_about_prices(rows, prices, options),
    )
    return Comparison(
        rows=tuple(row.model_copy(update={"warnings": warnings}) for row in _ranked(rows, options.instances)),
        warnings=warnings,
    )


def _ranked(rows: Sequence[Row], instances: Sequence[str]) -> list[Row]:
    """By what a dollar buys; then rows without a price by speed, those of a CPU, emulations, and what did not run."""
    return sorted(
        sorted(rows, key=lambda row: instances.index(row.instance)),
        key=lambda row: (
            row.status != "ok",
            row.emulated,
            row.device == "cpu",
            row.units_per_usd is None,
            -(row.units_per_usd or row.throughput_per_s or 0),
        ),
    )


def _require_some(chosen: Sequence[Record], options: CompareOptions) -> None:
    present = {record.instance for record in chosen}
    for name in options.instances:
        if name not in present:
            raise UsageError(
                f"no record{narrowed(options.workload, options.batch_size, options.optimizer)} for instance {name!r}",
                f"Run `fp8bench run --instance {name}` there, or add a figure with `fp8bench import`",
            )


def _find_reference(rows: Sequence[Row], wanted: Reference) -> Row | None:
    """The best row that fits: a gain over a slow variant of the baseline would flatter.

    Raises UsageError when the user named a row that is not there.
    """
    fitting = [
        row
        for row in rows
        if row.status == "ok" and wanted.names(row.instance, (row.mode, row.mode_label)) and wanted.takes(row.execution)
    ]
    if fitting:
        has_prices = all(row.units_per_usd for row in fitting)
        return max(fitting, key=lambda row: (row.units_per_usd if has_prices else row.throughput_per_s) or 0)
    if wanted.asked_for:
        there = ", ".join(sorted({row.label for row in rows if row.status == "ok"}))
        raise UsageError(f"no ok record of {wanted.label} to be the reference", f"There are: {there or 'none'}")
    return None


def _without_reference(reference: Row | None, wanted: Reference) -> list[str]:
    if reference is not None:
        return []
    return [
        f"no ok record of {wanted.label} to compare the rows with, so gains are omitted; "
        "name another row with --reference"
    ]


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
                f"{row.instance}:{row.mode_label} and {model.instance}:{model.mode_label} are not comparable: "
                f"{_tell(differing, found, expected)}",
                "Compare like with like (--workload, --optimizer), or give --allow-mismatch to see them marked",
            )
        mark = (f"unlike the reference in {', '.join(differing)}",) if differing else ()
        marked.append(row.model_copy(update={"marks": (*row.marks, *mark)}))
    return marked


def _differing(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


def _tell(names: Sequence[str], fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name} ({fingerprint.get(name)} and {expected.get(name)})" for name in names)


def _about_prices(rows: Sequence[Row], prices: Mapping[str, Priced], options: CompareOptions) -> list[str]:
    """What a reader must know of the prices that rows took."""
    of_rows = [(row, prices[row.run_id]) for row in rows if row.status == "ok"]
    doubts = [found.price.doubt for _, found in of_rows if found.price and found.price.doubt]
    not_yet = [found.not_yet for _, found in of_rows if found.not_yet]
    catalogues = [row for row, found in of_rows if found.price and not found.price.own]
    to_come = options.as_of is not None and options.as_of > options.today
    return [
        *([f"{options.as_of} is in the future: rows take the newest known prices"] if to_come else []),
        *dict.fromkeys([*doubts, *not_yet]),
        *_mixed_dates(catalogues),
    ]


def _mixed_dates(rows: Sequence[Row]) -> list[str]:
    """Each instance has one price, but that of one may be far older than that of another. rows: at the catalogue's
    prices; one's own contract holds as it is, however old.
    """
    dates = {row.price_as_of: row.instance for row in rows if row.price_as_of is not None and row.status == "ok"}
    if not dates:
        return []
    first, last = min(dates), max(dates)
    if (last - first).days <= MIXED_DATES_DAYS:
        return []
    return [
        f"prices are from {first} to {last} ({dates[first]} and {dates[last]}), more than {MIXED_DATES_DAYS} days "
        "apart: prices fall, so gains favour the newer one; --price-as-of DATE prices all rows on an earlier day"
    ]
