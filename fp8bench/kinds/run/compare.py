"""Records joined with prices, and each row compared with a reference of its own batch size. The verdict is on units per
USD if both have a price, else on speed. Prices are exact, so a unit's cost is as uncertain as its time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from pydantic import JsonValue

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.answer import Answer, Comparison, answer, elsewhere
from fp8bench.kinds.run.columns import best_batches
from fp8bench.kinds.run.rounds import Mark, UnitTime, doubt, not_compared
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.pricing import cost
from fp8bench.pricing.choose import OLD_DAYS, require_region
from fp8bench.records.select import (
    MAKE_ROWS,
    Measurement,
    broadest_first,
    grouped,
    not_comparable,
    of_several,
    select,
    unlike_software,
)
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import differing, in_words
from fp8bench.schema.option import flag_of
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import NOISE, RowVerdict, holds_noise, noise_between, verdict_on_value
from fp8bench.stats.estimate import Estimate, in_common, over_common_rounds
from fp8bench.stats.ratio import Ratio, ratio
from fp8bench.tables.written import workers


def compare(
    records: Sequence[Record], catalog: Catalog, options: CompareOptions, lent: Sequence[Measurement] = ()
) -> Comparison:
    """Compare records. records: those of the instances in `options`, oldest first. lent: as `borrow` returns it. Of
    several workloads the one is shown that most of the instances have, unless one is requested, all rows are, or
    mismatch is allowed. Raises UsageError without a record, a price of the requested region, or the reference.
    """
    require_region(options.region, catalog, options.instances)
    selected = [*select(records, options.every, options.wanted), *lent]
    by_work = grouped(selected, lambda one: str(one.latest.fingerprint.get("workload") or one.latest.what.workload))
    there = {work: [(one.latest.instance, one.latest.run_id) for one in ones] for work, ones in by_work.items()}
    asked = options.wanted.workload is not None or options.every or options.allow_mismatch
    every_work = asked or options.view.group_by == "workload" or len(by_work) < 2
    workload, *others = [""] if every_work else broadest_first(there)
    rows = _distinguished([to_row(one, catalog, options) for one in by_work.get(workload, selected)])
    wanted, ok = options.reference, [row for row in rows if row.status == "ok"]
    # What may not run there is nobody's reference unless it is asked for.
    sure = [row for row in ok if row.fits or wanted.asked_for]
    fitting = [row for row in sure if wanted.names(row.instance, (row.mode, row.mode_label), row.execution)]
    if not fitting and wanted.asked_for:
        there_are = ", ".join(sorted({row.label for row in ok})) or "none"
        raise UsageError(f"no ok record of {wanted.label} to be the reference", f"There are: {there_are}")
    reference = _best(fitting)

    def answered(rows: Sequence[Row], options: CompareOptions) -> Answer:
        judged = partial(against, allow_mismatch=options.allow_mismatch)
        alike, asked = _of_one_work(rows, reference), (options.reference, options.instances, judged)
        said = answer(alike, *asked)
        if options.view.best_batch:
            # Of the rows that are shown; all rows tell which sizes an instance was given.
            best = answer(best_batches(alike, options.view.group_by == "machine"), *asked, any_batch=True)
            at_best = tuple(one for one in said.at_best if one not in best.pairs)
            said = replace(best, at_best=at_best, missing=said.missing)
        pairs = (replace(one, elsewhere=elsewhere(one, catalog, options.query())) for one in said.pairs)
        return replace(said, pairs=tuple(pairs))

    def rank(row: Row) -> tuple[object, ...]:
        worth, place = row.units_per_usd or row.throughput_per_s or 0, options.instances.index(row.instance)
        return row.status != "ok", row.emulated, row.device == "cpu", row.units_per_usd is None, -worth, place

    warnings, hint = tuple(_warnings(rows, reference, options)), ""
    if others:
        without = [key for key in options.instances if key not in {row.instance for row in rows}]
        hint = of_several(workload, others, without)
    ranked = sorted(_beside_references(rows, fitting, options), key=rank)
    # The answer at the prices of the day of the newest published figure, none of them assumed, unless a day was given.
    figures = [row.measurement for row in rows if row.latest.source == "published"]
    days = [one.latest.provenance.published_on for one in figures if one.latest.provenance]
    then = None if options.as_of else max(filter(None, days), default=None)
    at_then = options._replace(as_of=then, price={})
    of_then = [to_row(one, catalog, at_then) for one in figures] if then else []
    return Comparison(
        rows=tuple(row.model_copy(update={"warnings": (*filter(None, [hint]), *warnings)}) for row in ranked),
        answer=answered(rows, options),
        published=(then, answered(of_then, at_then)) if then else None,
        hint=hint,
        warnings=warnings,
    )


def _best(fitting: Sequence[Row]) -> Row | None:
    # A gain over a slow variant of the baseline would be misleading. Rows without switches of Transformer Engine's
    # layer come first, so that the others show what each switch gains.
    has_prices = all(row.units_per_usd for row in fitting)
    plain = [row for row in fitting if not row.te_switches] or fitting
    return max(plain, key=lambda row: (row.units_per_usd if has_prices else row.throughput_per_s) or 0, default=None)


def _of_one_work(rows: Sequence[Row], model: Row | None) -> list[Row]:
    """Return the timed rows of one work, the model's if there, the published of one, and what did not run."""
    found = []
    for group in grouped(rows, lambda row: row.timed).values():
        ran = [row for row in group if row.status == "ok"]
        first = next((row for row in ran if model and row.run_id == model.run_id), next(iter(ran), None))
        found += [row for row in group if not _other_work(row, first)]
    return found


def _other_work(row: Row, model: Row | None) -> list[str]:
    expected = model.latest.fingerprint if model else {}
    return unlike_work(row.latest.fingerprint, expected) if row.status == "ok" else []


def unlike_work(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


def _beside_references(rows: Sequence[Row], fitting: Sequence[Row], options: CompareOptions) -> Iterator[Row]:
    """Yield each row beside its reference: of one configuration for all rows, on the row's own machine if it ran there;
    of another batch size if each mode is wanted at its best. Rows of other work are only marked, unless that is
    allowed. What was timed and what was published have a reference each.
    """
    allowed, reference = options.allow_mismatch, _best(fitting)
    ran = reference or next((row for row in rows if row.status == "ok"), None)
    model = {timed: _best([row for row in fitting if row.timed == timed]) or ran for timed in (True, False)}
    references = [row for row in fitting if allowed or not _other_work(row, model[row.timed])]

    def alike(row: Row) -> tuple[object, ...]:
        return options.view.best_batch or row.batch_size, row.timed

    of_size = grouped(references, alike)
    for row in rows:
        first = model[row.timed]
        other = _other_work(row, first)
        marks = [not_compared(_other_work_said(row, first, other, allowed))] if other and first else []
        if row.status == "ok" and reference is not None and (allowed or not other):
            known = of_size.get(alike(row)) or (references if allowed else [])
            if best := _best(known):
                here = [one for one in known if (one.instance, one.machine) == (row.instance, row.machine)]
                own = _best([one for one in here if one.configuration == best.configuration]) or best
                yield against(row.model_copy(update={"marks": (*row.marks, *marks)}), own, allowed)
                continue
            of = f"{reference.instance} has no {reference.mode_label} of batch {row.batch_size}"
            # What may not fit is a row, and no reference.
            doubted = ((one.instance, one.mode, one.batch_size) for one in rows if not one.fits)
            of += " that surely fits" * ((reference.instance, reference.mode, row.batch_size) in doubted)
            marks.append(not_compared(f"{of} to compare it with"))
        yield row.model_copy(update={"marks": (*row.marks, *marks)})


def _other_work_said(row: Row, model: Row, unlike: Sequence[str], allow_mismatch: bool) -> str:
    if allow_mismatch:
        return f"unlike the reference in {', '.join(unlike)}"
    if row.source != model.source and "published" in (row.source, model.source):
        return "published and measured figures are not compared with each other"
    chosen_by = {"workload": "--workload", "optimizer": "--optimizer", "accumulation": "--grad-accumulation"}
    if row.latest.config and model.latest.config and row.latest.config.optimizer == model.latest.config.optimizer:
        # It has other settings.
        del chosen_by["optimizer"]
    flags = [chosen_by[name] for name in unlike if name in chosen_by]
    remedy = f"compare like with like ({', '.join(flags)})"
    # What else differs between two workloads mostly follows from the workload.
    if "workload" not in unlike and len(flags) < len(unlike):
        remedy = "measure both with the same settings and version of fp8bench"
    return f"other work than the reference's ({', '.join(unlike)}): {remedy}"


def _warnings(rows: Sequence[Row], reference: Row | None, options: CompareOptions) -> Iterator[str]:
    if reference is None:
        none = f"no ok record of {options.reference.label} to compare the rows with"
        yield f"{none}, so gains are omitted; name another row with --reference"
    if options.as_of is not None and options.as_of > options.today:
        yield f"{options.as_of} is in the future: rows take the newest known prices"
    paid = [(row.instance, row.priced, row.priced.price) for row in rows if row.status == "ok"]
    doubts = [price.doubt for _, _, price in paid if price and price.doubt]
    yield from dict.fromkeys([*doubts, *(found.not_yet for _, found, _ in paid if found.not_yet)])
    # The price in a user's own contract holds however old it is.
    dates = {price.as_of: name for name, _, price in paid if price and price.as_of and not price.own}
    if dates and (max(dates) - min(dates)).days > OLD_DAYS:
        first, last = min(dates), max(dates)
        yield (
            f"prices are from {first} to {last} ({dates[first]} and {dates[last]}), more than {OLD_DAYS} days apart: "
            "prices fall, so gains favour the newer one; --price-as-of DATE prices all rows on an earlier day"
        )


def _distinguished(rows: Sequence[Row]) -> list[Row]:
    # By their machine if an instance has several, by each part of the software that differs, and by what was requested
    # otherwise of rows that look alike.
    place = "instance", "machine", "source", "device", "world_size", "nodes"
    looks = attrgetter(*place, "configuration", "workload", "batch_size")
    named, alike = list[Row](), grouped(rows, looks)
    for row in rows:
        names, others = [], [one for one in rows if one.source == "measured" and one.instance == row.instance]
        if len({other.machine for other in others}) > 1:
            names.append(Mark(f"machine {row.measurement.machine or 'unknown'}"))
        if (mine := row.software) is not None:
            softwares = [other.software for other in others if other.software is not None]
            unlike = dict.fromkeys(name for other in softwares for name in differing(mine, other))
            names += [Mark(f"{name} {in_words(mine, name)}") for name in unlike]
        apart = tuple(_settings_apart(row, alike[looks(row)]))
        named.append(row.model_copy(update={"apart": apart, "marks": (*names, *map(Mark, apart), *row.marks)}))
    return named


def _settings_apart(row: Row, alike: Sequence[Row]) -> Iterator[str]:
    for name in MAKE_ROWS if row.latest.config is not None else ():
        mine = getattr(row.latest.config, name)
        if any(getattr(one.latest.config, name, None) != mine for one in alike):
            yield f"without {flag_of(name)}" if mine is None else f"with {flag_of(name)} {mine}"
    if len({one.attention for one in alike} - {None}) > 1:
        yield f"attention {row.attention or 'unknown'}"


def against(row: Row, reference: Row, allow_mismatch: bool) -> Row:
    """Return the row compared with the reference. Within one instance, different machines or software prevent a
    verdict, unless the user requests it. Between instances, machines are the question.
    """
    one, two, found, other = row.latest, reference.latest, row.times, reference.times
    here, is_reference = row.instance == reference.instance, row.run_id == reference.run_id
    predicted = "predicted" in (row.source, reference.source)
    allowed = allow_mismatch or (predicted and here)
    mine, theirs = (None if times is None else times.by_elapsed for times in (found, other))
    of_mine, of_theirs = over_common_rounds(mine, theirs)
    beside = of_theirs / of_mine
    update: dict[str, object] = {
        "marks": (
            *row.marks,
            *unlike_marks(one, two, allowed),
            *_unlike_sizes(row, reference),
            *_unlike_rounds(mine, theirs),
        ),
        "is_reference": is_reference,
        "reference_run_id": reference.run_id,
    }
    # Not a CPU's time with a GPU's, not an emulation's, and not of different units.
    alike = (row.device, row.unit) == (reference.device, reference.unit) and not (row.emulated or reference.emulated)
    alike = alike and (allowed or not not_comparable(one, two))
    if not (alike and row.throughput_per_s and reference.throughput_per_s):
        return row.model_copy(update=update)
    throughput_per_s = beside * row.throughput_per_s
    update["speedup_vs_reference"] = throughput_per_s / reference.throughput_per_s
    if reference.units_per_usd:
        update["break_even_usd_per_hour"] = cost.break_even_usd_per_hour(throughput_per_s, reference.units_per_usd)
        if row.units_per_usd:
            update["gain_vs_reference"] = cost.gain(beside * row.units_per_usd, reference.units_per_usd)
    if found is not None and other is not None and not is_reference:
        noise = noise_between(*((each.instance, each.machine.id if each.machine else None) for each in (one, two)))
        if here and not predicted:
            # Of one machine, wherever that was.
            found, other = (replace(each, elsewhere=0.0) for each in (found, other))
        elif row.measured_on or reference.measured_on:
            # Their intervals hold what machines of one type differ by.
            noise = NOISE
        paid, of_reference = row.usd_per_hour, reference.usd_per_hour
        price_ratio = None if paid is None or of_reference is None else paid / of_reference
        update |= _judged(found, other, price_ratio, noise)
    return row.model_copy(update=update)


def unlike_marks(record: Record, reference: Record, allow_mismatch: bool) -> list[Mark]:
    unlike, software = not_comparable(record, reference), unlike_software(record, reference)
    how = "not comparable with the reference:" if unlike and not allow_mismatch else "unlike the reference in"
    return [not_compared(f"{how} {', '.join([*unlike, *software])}")] if unlike or software else []


def _unlike_sizes(row: Row, reference: Row) -> Iterator[Mark]:
    if row.batch_size != reference.batch_size:
        yield not_compared(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        yield not_compared(f"{workers(row.world_size, row.device)}, reference {reference.world_size}")
    joined = {row.joined, reference.joined}
    # For one rank and several by DDP, the number of ranks says how they were joined.
    if None not in joined and len(joined) > 1 and joined != {"none", "ddp"}:
        yield not_compared(f"ranks joined by {row.joined}, reference {reference.joined}")


def _unlike_rounds(mine: Estimate | None, theirs: Estimate | None) -> Iterator[Mark]:
    if mine is None or theirs is None or (both := in_common(mine, theirs)) == (mine, theirs):
        return
    of_mine, of_theirs = (f"{cut.processes} of {one.processes}" for cut, one in zip(both, (mine, theirs), strict=True))
    yield Mark(f"compared over the rounds that both have: {of_mine} processes, {of_theirs} of the reference")


def _judged(found: UnitTime, reference: UnitTime, price_ratio: float | None, noise: float) -> dict[str, object]:
    """Return the verdict and its intervals. noise: by how much the two must differ, as in `stats.ratio`."""

    def verdict_of(times: Ratio) -> RowVerdict:
        if times.interval is None or price_ratio is None:
            return times.verdict
        return verdict_on_value(times.interval[0] * price_ratio, times.interval[1] * price_ratio, noise)

    times = ratio(found.by_elapsed, reference.by_elapsed, noise)
    verdict, why = verdict_of(times), None
    if verdict == "inconclusive":
        why = Mark(holds_noise(noise) if times.interval else str(times.why))
    elif found.uneven or reference.uneven:
        by_medians = verdict_of(ratio(found.by_medians, reference.by_medians, noise))
        if by_medians != verdict:
            verdict, why = "inconclusive", doubt(f"{verdict} by elapsed time, {by_medians} by medians")
    on = "throughput" if price_ratio is None else "units_per_usd"
    update: dict[str, object] = {"verdict": verdict, "verdict_on": on, "verdict_why": why}
    if times.interval is not None:
        low, high = 1 / times.interval[1], 1 / times.interval[0]
        update["speedup_ci_vs_reference"] = (low, high)
        if price_ratio is not None:
            update["gain_ci_vs_reference"] = (low / price_ratio - 1, high / price_ratio - 1)
    return update
