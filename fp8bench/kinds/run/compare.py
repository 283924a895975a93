"""The comparison: records joined with prices, and each row compared with a reference of its own batch size: its
speed-up, its gain for a dollar, and whether that can be called better. Numbers only; `shown` shows them.

If both rows have a price, the verdict is on units per USD, because a second machine that makes a step shorter can make
each image more expensive; else it is on speed. Prices are exact, so a unit's cost is as uncertain as its time. Machine
and software may prevent a verdict (`likeness`). All rows are priced on one day, today unless another is requested, so
that no gain compares prices of different years.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache, partial

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Priced, priced
from fp8bench.kinds.run.answer import answer, elsewhere, tried
from fp8bench.kinds.run.likeness import (
    Likeness,
    comparable,
    likeness,
    of_one_work,
    other_work,
    unlike_sizes,
    with_other_work,
)
from fp8bench.kinds.run.marks import Mark, doubt, not_compared
from fp8bench.kinds.run.row import Answer, Comparison, Row, to_row
from fp8bench.kinds.run.unit_cost import UnitTime, unit_time, used
from fp8bench.pricing import cost
from fp8bench.pricing.choose import PriceQuery, choose, require_region
from fp8bench.records.named import Reference
from fp8bench.records.select import Measurement, broadest_first, select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.machine import Software, differing, in_words
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import NOISE, RowVerdict, holds_noise, verdict_on_value
from fp8bench.stats.ratio import Ratio, ratio

MIXED_DATES_DAYS = 90


def compare(
    records: Sequence[Record], catalog: Catalog, options: CompareOptions, lent: Sequence[Measurement] = ()
) -> Comparison:
    """Compare records. records: those of the instances in `options`, oldest first. lent: what `lent` returns for those
    without.

    Of several workloads the one is shown that most of the instances have, unless one is requested, all rows are, or
    mismatch is allowed. Raises UsageError if an instance has no record, if no price is of the requested region, or if
    the requested reference is missing.
    """
    require_region(options.region, catalog, options.instances)
    selected = [*select(records, options.every, options.wanted), *lent]
    for name in options.instances:
        if all(measurement.latest.instance != name for measurement in selected):
            raise UsageError(
                f"no record{options.wanted.words} for instance {name!r}",
                f"Run `fp8bench run --instance {name}{options.wanted.flags}` there, or add a figure with "
                "`fp8bench results import`",
            )
    workload, others = _workload(selected, options)
    chosen = [one for one in selected if workload is None or _work_of(one) == workload]
    of = {one.latest.run_id: one.latest for one in chosen}
    day = options.as_of or options.today
    found = {one.latest.run_id: unit_time(one) for one in chosen}
    prices = {name: priced(record, used(record, catalog), catalog, options, day) for name, record in of.items()}
    bare = distinguished(
        [to_row(one, found[name], prices[name], catalog) for name, one in zip(of, chosen, strict=True)]
    )
    fitting = _references(bare, options.reference)
    # What was timed and what was published are not compared with each other, and each has its own reference.
    sides = {timed: [row for row in bare if row.timed == timed] for timed in (True, False)}
    of_side = {timed: _best([row for row in fitting if row.timed == timed]) for timed in sides}
    reference = _best(fitting)
    ran = reference or next((row for row in bare if row.status == "ok"), None)
    model = {timed: of_side[timed] or ran for timed in sides}
    unlike = {key: words for timed, rows in sides.items() for key, words in other_work(rows, model[timed], of).items()}
    references = fitting if options.allow_mismatch else [row for row in fitting if not unlike[row.run_id]]

    reference_of, against = _reference_finder(references, options), partial(_against, of, found, options)

    def answered(rows: Sequence[Row], on: date) -> Answer:
        query = PriceQuery(on, on >= options.today, options.region, options.purchase)

        def price_of(instance: Instance) -> float | None:
            price = choose(instance.prices, query)
            return price.usd_per_hour if price else None

        said = answer(of_one_work(rows, reference, of), options.reference, options.instances, against)
        pairs = (one.model_copy(update={"elsewhere": elsewhere(one, catalog, price_of)}) for one in said.pairs)
        return said.model_copy(update={"pairs": tuple(pairs)})

    def beside_its_reference(row: Row) -> Row:
        row = with_other_work(row, model[row.timed], unlike[row.run_id], options.allow_mismatch)
        if row.status != "ok" or reference is None or (unlike[row.run_id] and not options.allow_mismatch):
            return row
        own = reference_of(row)
        if own is not None:
            return against(row, own)
        missing = f"{reference.instance} has no {reference.mode_label} of batch {row.batch_size} to compare it with"
        return row.model_copy(update={"marks": (*row.marks, not_compared(missing))})

    def rank(row: Row) -> tuple[object, ...]:
        worth = row.units_per_usd or row.throughput_per_s or 0
        unpriced, place = row.units_per_usd is None, options.instances.index(row.instance)
        return row.status != "ok", row.emulated, row.device == "cpu", unpriced, -worth, place

    rows = sorted(map(beside_its_reference, bare), key=rank)
    warnings = tuple(_warnings(bare, reference, prices, options, workload, others))
    return Comparison(
        rows=tuple(row.model_copy(update={"warnings": warnings}) for row in rows),
        answer=answered(bare, day),
        published=_as_published(chosen, found, catalog, options, answered),
        warnings=warnings,
    )


def _against(
    of: Mapping[str, Record], found: Mapping[str, UnitTime | None], options: CompareOptions, row: Row, other: Row
) -> Row:
    """Return a row compared with another. of, found: the record and the times of each row, by its run's id."""
    one, two = row.run_id, other.run_id
    like, mine, theirs = likeness(of[one], of[two], options.allow_mismatch), found[one], found[two]
    if row.instance == other.instance:
        # Of one machine, wherever that was.
        mine, theirs = (each and replace(each, elsewhere=0.0) for each in (mine, theirs))
    elif row.measured_on or other.measured_on:
        # Their intervals hold what machines of one type differ by.
        like = like._replace(noise=NOISE)
    return compared_with(row, other, mine, theirs, like)


def _as_published(
    chosen: Sequence[Measurement],
    found: Mapping[str, UnitTime | None],
    catalog: Catalog,
    options: CompareOptions,
    answered: Callable[[Sequence[Row], date], Answer],
) -> tuple[date, Answer] | None:
    """Return the answer at the prices of the day of the newest published figure; None if a day was requested."""
    records = [one.latest for one in chosen if one.latest.provenance is not None and one.latest.source == "published"]
    days = [one.provenance.published_on for one in records if one.provenance and one.provenance.published_on]
    if options.as_of is not None or not days:
        return None
    day, ids = max(days), {record.run_id for record in records}
    rows = []
    for one in (one for one in chosen if one.latest.run_id in ids):
        price = priced(one.latest, used(one.latest, catalog), catalog, options, day)
        rows.append(to_row(one, found[one.latest.run_id], price, catalog))
    return day, answered(rows, day)


def _references(rows: Sequence[Row], wanted: Reference) -> list[Row]:
    fitting = [
        row
        for row in rows
        if row.status == "ok" and wanted.names(row.instance, (row.mode, row.mode_label)) and wanted.takes(row.execution)
    ]
    if not fitting and wanted.asked_for:
        there = ", ".join(sorted({row.label for row in rows if row.status == "ok"}))
        raise UsageError(f"no ok record of {wanted.label} to be the reference", f"There are: {there or 'none'}")
    return fitting


def _best(fitting: Sequence[Row]) -> Row | None:
    """Return the best: a gain over a slow variant of the baseline would be misleading. Rows without switches of
    Transformer Engine's layer come first, so that the others show what each switch gains.
    """
    has_prices = all(row.units_per_usd for row in fitting)
    plain = [row for row in fitting if not row.te_switches]
    return max(
        plain or fitting,
        key=lambda row: (row.units_per_usd if has_prices else row.throughput_per_s) or 0,
        default=None,
    )


def _reference_finder(references: Sequence[Row], options: CompareOptions) -> Callable[[Row], Row | None]:
    """Return what finds a row's reference: of one configuration for all rows, on the row's own machine if it ran there;
    of another batch size if each mode is wanted at its best.
    """

    @cache
    def like(size: tuple[int, bool]) -> tuple[Sequence[Row], Row | None]:
        found = [one for one in references if options.view.best_batch or tried(one) == size]
        found = found or [*(references if options.allow_mismatch else ())]
        return found, _best(found)

    def reference_of(row: Row) -> Row | None:
        found, best = like(tried(row))
        there = [one for one in found if (one.instance, one.machine) == (row.instance, row.machine)]
        return _best([one for one in there if best and one.configuration == best.configuration]) or best

    return reference_of


def _workload(selected: Sequence[Measurement], options: CompareOptions) -> tuple[str | None, list[str]]:
    """Return the workload that most of the instances have, and the others; None if all are shown."""
    asked = options.wanted.workload is not None or options.every or options.allow_mismatch
    if asked or options.view.group_by == "workload":
        return None, []
    there: dict[str, list[tuple[str, object]]] = {}
    for measurement in selected:
        there.setdefault(_work_of(measurement), []).append((measurement.latest.instance, measurement.latest.run_id))
    order = broadest_first(there)
    return (order[0], order[1:]) if len(order) > 1 else (None, [])


def _work_of(measurement: Measurement) -> str:
    return str(measurement.latest.fingerprint.get("workload") or measurement.latest.what.workload)


def _warnings(
    rows: Sequence[Row],
    reference: Row | None,
    prices: Mapping[str, Priced],
    options: CompareOptions,
    shown: str | None,
    others: Sequence[str],
) -> Iterator[str]:
    if shown is not None:
        without = [key for key in options.instances if key not in {row.instance for row in rows}]
        missing = f"; {', '.join(without)} has no record of it" if without else ""
        yield f"{shown}; also measured: {', '.join(others)} (--workload){missing}"
    if reference is None:
        yield (
            f"no ok record of {options.reference.label} to compare the rows with, so gains are omitted; "
            "name another row with --reference"
        )
    if options.as_of is not None and options.as_of > options.today:
        yield f"{options.as_of} is in the future: rows take the newest known prices"
    of_rows = [(row, prices[row.run_id]) for row in rows if row.status == "ok"]
    doubts = [found.price.doubt for _, found in of_rows if found.price and found.price.doubt]
    yield from dict.fromkeys([*doubts, *(found.not_yet for _, found in of_rows if found.not_yet)])
    # The price in a user's own contract holds however old it is.
    catalogues = [row for row, found in of_rows if found.price and not found.price.own]
    dates = {row.price_as_of: row.instance for row in catalogues if row.price_as_of is not None}
    if dates and (max(dates) - min(dates)).days > MIXED_DATES_DAYS:
        first, last = min(dates), max(dates)
        yield (
            f"prices are from {first} to {last} ({dates[first]} and {dates[last]}), more than {MIXED_DATES_DAYS} days "
            "apart: prices fall, so gains favour the newer one; --price-as-of DATE prices all rows on an earlier day"
        )


def distinguished(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, marked with their machine if one instance has several, and with each part of the software that
    differs.
    """
    machines: dict[str, set[str | None]] = {}
    softwares: dict[str, dict[object, Software]] = {}
    for row in rows:
        if row.source == "measured":
            machines.setdefault(row.instance, set()).add(row.machine)
            if row.software is not None:
                softwares.setdefault(row.instance, {}).setdefault(tuple(row.software.items()), row.software)
    named: list[Row] = []
    for row in rows:
        several = len(machines.get(row.instance, ())) > 1
        names = map(Mark, _names(row, several, softwares.get(row.instance, {}).values()))
        named.append(row.model_copy(update={"marks": (*names, *row.marks)}))
    return named


def _names(row: Row, several_machines: bool, softwares: Iterable[Software]) -> Iterator[str]:
    if several_machines:
        label = f"{row.machine_label} ({row.machine})" if row.machine_label else row.machine
        yield f"machine {label or 'unknown'}"
    if row.software is not None:
        unlike = dict.fromkeys(name for other in softwares for name in differing(row.software, other))
        yield from (f"{name} {in_words(row.software, name)}" for name in unlike)


def compared_with(
    row: Row, reference: Row, found: UnitTime | None, reference_found: UnitTime | None, like: Likeness
) -> Row:
    """Return the row compared with the reference. found, reference_found: None for a figure without samples."""
    is_reference = row.run_id == reference.run_id
    update: dict[str, object] = {
        "marks": (*row.marks, *like.marks, *unlike_sizes(row, reference)),
        "is_reference": is_reference,
        "reference_run_id": reference.run_id,
    }
    if not (like.verdict and comparable(row, reference) and row.throughput_per_s and reference.throughput_per_s):
        return row.model_copy(update=update)
    update["speedup_vs_reference"] = row.throughput_per_s / reference.throughput_per_s
    if reference.units_per_usd:
        update["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(row.throughput_per_s, reference.units_per_usd)
        if row.units_per_usd:
            update["gain_vs_reference"] = cost.gain(row.units_per_usd, reference.units_per_usd)
    if found is not None and reference_found is not None and not is_reference:
        paid = row.usd_per_hour, reference.usd_per_hour
        price_ratio = None if paid[0] is None or paid[1] is None else paid[0] / paid[1]
        update |= _judged(found, reference_found, price_ratio, like.noise)
    return row.model_copy(update=update)


def _judged(found: UnitTime, reference: UnitTime, price_ratio: float | None, noise: float) -> dict[str, object]:
    times = ratio(found.by_elapsed, reference.by_elapsed, noise)
    verdict, why = _verdict(times, price_ratio, noise)
    if verdict != "inconclusive" and (found.uneven or reference.uneven):
        by_medians, _ = _verdict(ratio(found.by_medians, reference.by_medians, noise), price_ratio, noise)
        if by_medians != verdict:
            verdict, why = "inconclusive", doubt(f"{verdict} by elapsed time, {by_medians} by medians")
    update: dict[str, object] = {
        "verdict": verdict,
        "verdict_on": "throughput" if price_ratio is None else "units_per_usd",
        "verdict_why": why,
    }
    if times.interval is not None:
        low, high = 1 / times.interval[1], 1 / times.interval[0]
        update["speedup_ci_vs_reference"] = (low, high)
        if price_ratio is not None:
            update["gain_ci_vs_reference"] = (low / price_ratio - 1, high / price_ratio - 1)
    return update


def _verdict(times: Ratio, price_ratio: float | None, noise: float) -> tuple[RowVerdict, Mark | None]:
    if times.interval is None:
        return times.verdict, Mark(times.why) if times.why else None
    verdict: RowVerdict = times.verdict
    if price_ratio is not None:
        verdict = verdict_on_value(times.interval[0] * price_ratio, times.interval[1] * price_ratio, noise)
    return verdict, Mark(holds_noise(noise)) if verdict == "inconclusive" else None
