"""The comparison: records joined with prices, and each row compared with a reference of its own batch size: its
speed-up, its gain for a dollar, and whether that can be called better. Numbers only; `shown` shows them.

If both rows have a price, the verdict is on units per USD, because a second machine that makes a step shorter can make
each image more expensive; else it is on speed. Prices are exact, so a unit's cost is as uncertain as its time. Machine
and software may prevent a verdict (`likeness`). All rows are priced on one day, today unless another is requested, so
that no gain compares prices of different years.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from pydantic import JsonValue

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Priced, priced
from fp8bench.kinds.run.answer import Answer, Comparison, answer, elsewhere, tried
from fp8bench.kinds.run.marks import Mark, doubt, not_compared
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.kinds.run.unit_cost import UnitTime, unit_time, used
from fp8bench.pricing import cost
from fp8bench.pricing.choose import OLD_DAYS, require_region
from fp8bench.records.named import Reference
from fp8bench.records.select import Measurement, broadest_first, grouped, select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import differing, in_words
from fp8bench.schema.record import Record, not_comparable, unlike_software
from fp8bench.stats.certainty import NOISE, RowVerdict, holds_noise, noise_between, verdict_on_value
from fp8bench.stats.ratio import Ratio, ratio
from fp8bench.tables.written import workers

CHOSEN_BY = {"workload": "--workload", "optimizer": "--optimizer", "accumulation": "--grad-accumulation"}
"""The option that chooses among records, by what it chooses of a fingerprint."""


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
    by_work = grouped(selected, lambda one: str(one.latest.fingerprint.get("workload") or one.latest.what.workload))
    there = {work: [(one.latest.instance, one.latest.run_id) for one in ones] for work, ones in by_work.items()}
    asked = options.wanted.workload is not None or options.every or options.allow_mismatch
    every_work = asked or options.view.group_by == "workload"
    workload, *others = [""] if every_work or len(by_work) < 2 else broadest_first(there)
    chosen = by_work.get(workload, selected)
    pairing = _Pairing(
        options,
        {one.latest.run_id: one.latest for one in chosen},
        {one.latest.run_id: unit_time(one) for one in chosen},
    )

    def priced_on(on: date, one: Measurement) -> Priced:
        return priced(one.latest, used(one.latest, catalog), catalog, options, on)

    def rows_on(on: date, measurements: Sequence[Measurement]) -> list[Row]:
        return [to_row(one, pairing.found[one.latest.run_id], priced_on(on, one), catalog) for one in measurements]

    def answered(rows: Sequence[Row], on: date) -> Answer:
        said = answer(pairing.of_one_work(rows, reference), options.reference, options.instances, pairing.against)
        pairs = (one.model_copy(update={"elsewhere": elsewhere(one, catalog, options.query(on))}) for one in said.pairs)
        return said.model_copy(update={"pairs": tuple(pairs)})

    def rank(row: Row) -> tuple[object, ...]:
        worth = row.units_per_usd or row.throughput_per_s or 0
        unpriced, place = row.units_per_usd is None, options.instances.index(row.instance)
        return row.status != "ok", row.emulated, row.device == "cpu", unpriced, -worth, place

    day = options.as_of or options.today
    bare = _distinguished(rows_on(day, chosen))
    fitting = _references(bare, options.reference)
    reference = _best(fitting)
    ranked = sorted(pairing.beside_references(bare, fitting), key=rank)
    prices = {one.latest.run_id: priced_on(day, one) for one in chosen}
    warnings = tuple(_warnings(bare, reference, prices, options, workload, others))
    # The answer at the prices of the day of the newest published figure, unless a day was requested.
    figures = [one for one in chosen if one.latest.source == "published" and one.latest.provenance]
    days = [one.latest.provenance.published_on for one in figures if one.latest.provenance]
    then = None if options.as_of else max(filter(None, days), default=None)
    return Comparison(
        rows=tuple(row.model_copy(update={"warnings": warnings}) for row in ranked),
        answer=answered(bare, day),
        published=(then, answered(rows_on(then, figures), then)) if then else None,
        warnings=warnings,
    )


@dataclass(frozen=True)
class _Pairing:
    """How rows are paired. of, found: the record and the times of each row, by its run's id."""

    options: CompareOptions
    of: Mapping[str, Record]
    found: Mapping[str, UnitTime | None]

    def other_work(self, row: Row, model: Row | None) -> list[str]:
        """Return what differs between a row's work and the model's; nothing if it did not run."""
        expected = self.of[model.run_id].fingerprint if model else {}
        return unlike_work(self.of[row.run_id].fingerprint, expected) if row.status == "ok" else []

    def of_one_work(self, rows: Sequence[Row], model: Row | None) -> list[Row]:
        """Return the timed rows of one work, and the published ones of one; what did not run is of any."""
        found = []
        for timed in (True, False):
            group = [row for row in rows if row.timed == timed]
            ran = [row for row in group if row.status == "ok"]
            first = next((row for row in ran if model and row.run_id == model.run_id), next(iter(ran), None))
            found += [row for row in group if not self.other_work(row, first)]
        return found

    def against(self, row: Row, other: Row) -> Row:
        """Return a row compared with another."""
        mine, theirs = self.found[row.run_id], self.found[other.run_id]
        one, two = self.of[row.run_id], self.of[other.run_id]
        predicted = "predicted" in (row.source, other.source)
        here, there = ((each.instance, each.machine.id if each.machine else None) for each in (one, two))
        noise = noise_between(here, there)
        alike = predicted and row.instance == other.instance
        like = likeness(one, two, self.options.allow_mismatch or alike)
        if row.instance == other.instance and not predicted:
            # Of one machine, wherever that was.
            mine, theirs = (each and replace(each, elsewhere=0.0) for each in (mine, theirs))
        elif row.measured_on or other.measured_on:
            # Their intervals hold what machines of one type differ by.
            noise = NOISE
        return compared_with(row, other, mine, theirs, like, noise)

    def beside_references(self, rows: Sequence[Row], fitting: Sequence[Row]) -> Iterator[Row]:
        """Yield each row beside its reference: of one configuration for all rows, on the row's own machine if it ran
        there; of another batch size if each mode is wanted at its best. Rows of other work are only marked, unless that
        is allowed. What was timed and what was published have a reference each.
        """
        allowed, reference = self.options.allow_mismatch, _best(fitting)
        ran = reference or next((row for row in rows if row.status == "ok"), None)
        model = {timed: _best([row for row in fitting if row.timed == timed]) or ran for timed in (True, False)}
        unlike = {row.run_id: self.other_work(row, model[row.timed]) for row in rows}
        references = [row for row in fitting if allowed or not unlike[row.run_id]]
        of_size = grouped(references, lambda one: self.options.view.best_batch or tried(one))
        best_of = {size: _best(ones) for size, ones in of_size.items()}
        best_of_all = _best(references)
        for row in rows:
            other, first = unlike[row.run_id], model[row.timed]
            if other and first:
                mark = not_compared(_other_work_said(row, first, other, allowed))
                row = row.model_copy(update={"marks": (*row.marks, mark)})
            if row.status != "ok" or reference is None or (other and not allowed):
                yield row
                continue
            size = self.options.view.best_batch or tried(row)
            known, best = of_size.get(size, []), best_of.get(size)
            if not known and allowed:
                known, best = references, best_of_all
            here = [one for one in known if (one.instance, one.machine) == (row.instance, row.machine)]
            own = _best([one for one in here if best and one.configuration == best.configuration]) or best
            missing = f"{reference.instance} has no {reference.mode_label} of batch {row.batch_size} to compare it with"
            without = {"marks": (*row.marks, not_compared(missing))}
            yield row.model_copy(update=without) if own is None else self.against(row, own)


def _references(rows: Sequence[Row], wanted: Reference) -> list[Row]:
    ok = [row for row in rows if row.status == "ok"]
    fitting = [row for row in ok if wanted.names(row.instance, (row.mode, row.mode_label), row.execution)]
    if not fitting and wanted.asked_for:
        there = ", ".join(sorted({row.label for row in ok}))
        raise UsageError(f"no ok record of {wanted.label} to be the reference", f"There are: {there or 'none'}")
    return fitting


def _best(fitting: Sequence[Row]) -> Row | None:
    """Return the best: a gain over a slow variant of the baseline would be misleading. Rows without switches of
    Transformer Engine's layer come first, so that the others show what each switch gains.
    """
    has_prices = all(row.units_per_usd for row in fitting)
    plain = [row for row in fitting if not row.te_switches] or fitting
    return max(plain, key=lambda row: (row.units_per_usd if has_prices else row.throughput_per_s) or 0, default=None)


def _warnings(
    rows: Sequence[Row],
    reference: Row | None,
    prices: Mapping[str, Priced],
    options: CompareOptions,
    shown: str,
    others: Sequence[str],
) -> Iterator[str]:
    if others:
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
    dates = {row.price_as_of: row.instance for row, found in of_rows if found.price and not found.price.own}
    known = sorted(day for day in dates if day is not None)
    if known and (known[-1] - known[0]).days > OLD_DAYS:
        yield (
            f"prices are from {known[0]} to {known[-1]} ({dates[known[0]]} and {dates[known[-1]]}), more than "
            f"{OLD_DAYS} days apart: prices fall, so gains favour the newer one; --price-as-of DATE prices all rows on "
            "an earlier day"
        )


def _distinguished(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, marked with their machine if one instance has several, and with each part of the software that
    differs.
    """
    measured = grouped((row for row in rows if row.source == "measured"), lambda row: row.instance)
    named: list[Row] = []
    for row in rows:
        names, others = [], measured.get(row.instance, [])
        if len({other.machine for other in others}) > 1:
            label = f"{row.machine_label} ({row.machine})" if row.machine_label else row.machine
            names.append(Mark(f"machine {label or 'unknown'}"))
        if (mine := row.software) is not None:
            softwares = [other.software for other in others if other.software is not None]
            unlike = dict.fromkeys(name for other in softwares for name in differing(mine, other))
            names += [Mark(f"{name} {in_words(mine, name)}") for name in unlike]
        named.append(row.model_copy(update={"marks": (*names, *row.marks)}))
    return named


def unlike_work(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    """Return the names of what differs between two fingerprints."""
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


def _other_work_said(row: Row, model: Row, unlike: Sequence[str], allow_mismatch: bool) -> str:
    if allow_mismatch:
        return f"unlike the reference in {', '.join(unlike)}"
    if row.source != model.source and "published" in (row.source, model.source):
        return "published and measured figures are not compared with each other"
    flags = [CHOSEN_BY[name] for name in unlike if name in CHOSEN_BY]
    remedy = f"compare like with like ({', '.join(flags)})"
    # What else differs between two workloads mostly follows from the workload.
    if "workload" not in unlike and len(flags) < len(unlike):
        remedy = "measure both with the same settings and version of fp8bench"
    return f"other work than the reference's ({', '.join(unlike)}): {remedy}"


class Likeness(NamedTuple):
    """verdict: whether one may be given. marks: warnings for a reader."""

    verdict: bool = True
    marks: tuple[Mark, ...] = ()


def likeness(record: Record, reference: Record, allow_mismatch: bool) -> Likeness:
    """Return how a row compares. Within one instance, different machines or software prevent a verdict, unless the user
    requests it. Between instances, machines are the question, and different software is marked.
    """
    unlike, software = not_comparable(record, reference), unlike_software(record, reference)
    how = "not comparable with the reference:" if unlike and not allow_mismatch else "unlike the reference in"
    marks = (not_compared(f"{how} {', '.join([*unlike, *software])}"),) if unlike or software else ()
    return Likeness(allow_mismatch or not unlike, marks)


def _unlike_sizes(row: Row, reference: Row) -> Iterator[Mark]:
    """Yield marks for the batch size, the workers, and how ranks were joined, if they are not the reference's."""
    if row.batch_size != reference.batch_size:
        yield not_compared(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        yield not_compared(f"{workers(row.world_size, row.device)}, reference {reference.world_size}")
    joined = {row.joined, reference.joined}
    # For one rank and several by DDP, the number of ranks says how they were joined.
    if None not in joined and len(joined) > 1 and joined != {"none", "ddp"}:
        yield not_compared(f"ranks joined by {row.joined}, reference {reference.joined}")


def compared_with(
    row: Row, reference: Row, found: UnitTime | None, reference_found: UnitTime | None, like: Likeness, noise: float
) -> Row:
    """Return the row compared with the reference. found, reference_found: None for a figure without samples. noise: by
    how much the two must differ, as in `stats.ratio`.
    """
    is_reference = row.run_id == reference.run_id
    update: dict[str, object] = {
        "marks": (*row.marks, *like.marks, *_unlike_sizes(row, reference)),
        "is_reference": is_reference,
        "reference_run_id": reference.run_id,
    }
    # Not a CPU's time with a GPU's, not an emulation's, and not of different units.
    alike = (row.device, row.unit) == (reference.device, reference.unit) and not (row.emulated or reference.emulated)
    if not (like.verdict and alike and row.throughput_per_s and reference.throughput_per_s):
        return row.model_copy(update=update)
    update["speedup_vs_reference"] = row.throughput_per_s / reference.throughput_per_s
    if reference.units_per_usd:
        update["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(row.throughput_per_s, reference.units_per_usd)
        if row.units_per_usd:
            update["gain_vs_reference"] = cost.gain(row.units_per_usd, reference.units_per_usd)
    if found is not None and reference_found is not None and not is_reference:
        paid = row.usd_per_hour, reference.usd_per_hour
        price_ratio = None if paid[0] is None or paid[1] is None else paid[0] / paid[1]
        update |= _judged(found, reference_found, price_ratio, noise)
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
