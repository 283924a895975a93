"""What `fp8bench scaling` shows: the records of a workload, and which of them are not comparable."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date

from fp8bench import registry
from fp8bench.kinds.kind import CompareOptions, Unread
from fp8bench.kinds.run.compare import like_with_like, names_apart, unlike_work
from fp8bench.pricing.choose import require_region
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.select import Filter, Measurement, in_micro_batches, select
from fp8bench.report.written import workers
from fp8bench.scaling.points import Found, Point, compared, names_of, of_runs, of_throughput, words_for
from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.schema.throughput import ThroughputRecord

Whole = Callable[[Record], Record]


@dataclass(frozen=True)
class Question:
    """What the user asked for. workload: None if it can be inferred. reference: MODE or MODE:RECIPE. named: whether the
    user named the instances, and so wants to know which have no record. one_size_will_do: whether records of one size
    suffice, because a projection adds others.
    """

    workload: str | None
    reference: str
    named: bool = True
    one_size_will_do: bool = False


@dataclass(frozen=True)
class Scaled:
    """The result. found: compared points. omitted: why other records of the workload are missing. notes: on sources."""

    workload: str
    reference: str
    found: tuple[Found, ...]
    omitted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        """The points in the order of a table."""
        return tuple(one.point for one in self.found)


def scaled(
    records: Sequence[Record],
    figures: Sequence[ThroughputRecord],
    question: Question,
    options: CompareOptions,
    catalog: Catalog,
    results_dir: results.Folders,
    whole: Whole,
) -> Scaled:
    """Compare what was found. records, figures: of the instances in `options`, oldest first. whole: returns a record
    with its samples.

    Raises UsageError if there is no record, if the workload is ambiguous or unknown, if all records are of one size, or
    if the measurements are not comparable and `allow_mismatch` is not set.
    """
    require_region(options.region, catalog, options.instances)
    workload = _workload(records, figures, question, options, results_dir)
    chosen = select(records, options.every, replace(options.wanted, workload=workload))
    published = [one for one in figures if one.workload == workload and _takes(options.wanted)]
    ok = [one for one in chosen if one.latest.status == "ok"]
    if not ok and not published:
        raise _nothing(f"of {workload}{options.wanted.words}", options, results_dir)
    _require_like_work(ok, options.allow_mismatch)
    runs = [Measurement(tuple(map(whole, one.rounds)), one.stopped) for one in ok]
    every = _points(runs, published, catalog, options)
    kept = every if question.one_size_will_do else _of_several_sizes(every, workload)
    single = [f"omitted, as of one size only: {text}" for text in _sizes_of([one for one in every if one not in kept])]
    if len(kept) < len(every):
        # Once more, because an omitted measurement does not decide the day of the prices.
        of = {run_id for one in kept for run_id in one.point.run_ids}
        shown = [one for one in runs if one.latest.run_id in of], [one for one in published if one.run_id in of]
        kept = _points(*shown, catalog, options)
    without = _without_reference(kept, question.reference)
    stopped = [f"omitted: {_called(one.latest)} is {one.latest.status}" for one in chosen if one.latest.status != "ok"]
    with_any = {one.point.instance for one in every}
    missing = [f"no record of {workload} for {key}: it is omitted" for key in options.instances if key not in with_any]
    return Scaled(
        workload,
        question.reference,
        tuple(compared(kept, question.reference)),
        omitted=(*without, *stopped, *single, *(missing if question.named else ())),
        notes=tuple(dict.fromkeys(_about_source(one) for one in published)),
    )


def _points(
    runs: Sequence[Measurement], figures: Sequence[ThroughputRecord], catalog: Catalog, options: CompareOptions
) -> list[Found]:
    """Return the points of all, at the prices of the day that follows from all."""
    day = _pricing_day([one.latest for one in runs], figures, options)
    return [*of_runs(runs, catalog, options, day), *of_throughput(figures, catalog, options, day)]


def _about_source(record: ThroughputRecord) -> str:
    """Return the source of these figures, their day, and the note on them."""
    of = record.provenance
    day = f" ({of.published_on})" if of and of.published_on else ""
    note = f": {record.note}" if record.note else ""
    return f"{record.source}: {of.citation if of else 'no source'}{day}{note}."


def _takes(wanted: Filter) -> bool:
    """Return whether the filter accepts published throughput, which states no batch size, optimizer or
    micro-batches.
    """
    return (wanted.batch_size, wanted.optimizer, wanted.grad_accumulation) == (None, None, None)


def _workload(
    records: Sequence[Record],
    figures: Sequence[ThroughputRecord],
    question: Question,
    options: CompareOptions,
    results_dir: results.Folders,
) -> str:
    """Return the requested workload, or the only one that has several sizes."""
    sizes: dict[str, set[int]] = {}
    for record in records:
        if record.status == "ok":
            sizes.setdefault(record.what.workload, set()).add(record.what.world_size)
    for figure in figures:
        sizes.setdefault(figure.workload, set()).update(point.world_size for point in figure.points)
    if question.workload is not None:
        plain = question.workload.partition(",")[0]
        if question.workload not in sizes and plain not in registry.workloads():
            raise unknown_name(
                "workload", question.workload, sorted({*sizes, *registry.workloads()}), "fp8bench list workloads"
            )
        if question.workload not in sizes:
            raise _nothing(f"of {question.workload}", options, results_dir, f" --workload {question.workload}")
        return question.workload
    if not sizes:
        raise _nothing(f"for {', '.join(options.instances)}", options, results_dir)
    several = [name for name, of_name in sizes.items() if len(of_name) > 1]
    candidates = several or list(sizes)
    if len(candidates) > 1:
        raise UsageError(
            f"these are records of different workloads: {', '.join(sorted(candidates))}", "Choose one with --workload"
        )
    return candidates[0]


def _nothing(what: str, options: CompareOptions, results_dir: results.Folders, flags: str = "") -> UsageError:
    instance = options.instances[0] if len(options.instances) == 1 else "NAME"
    return results.nothing_found(
        what,
        results_dir,
        f"Run `fp8bench run --instance {instance}{flags}` there, or name another instance or workload",
        RUN,
    )


def _require_like_work(chosen: Iterable[Measurement], allow_mismatch: bool) -> None:
    """Raise UsageError if measurements have unlike fingerprints. A published figure's has only the workload's name."""
    measured = [one.latest for one in chosen if one.latest.source == "measured"]
    kinds = {json.dumps(record.fingerprint, sort_keys=True): record for record in measured}
    if len(kinds) < 2 or allow_mismatch:
        return
    first, second, *_ = kinds.values()
    names = unlike_work(second.fingerprint, first.fingerprint)
    unlike = ", ".join(f"{name} ({first.fingerprint.get(name)} and {second.fingerprint.get(name)})" for name in names)
    raise UsageError(
        f"{' and '.join(names_apart(*map(_with_micro_batches, (first, second))))} are not comparable: {unlike}",
        f"{like_with_like(names)}, or give --allow-mismatch",
    )


def _of_several_sizes(found: Sequence[Found], workload: str) -> list[Found]:
    """Return the points that have another size to be compared with. Raises UsageError if there are none."""
    sizes: dict[object, set[tuple[int, int]]] = {}
    for one in found:
        sizes.setdefault(one.point.group, set()).add(one.point.size)
    kept = [one for one in found if len(sizes[one.point.group]) > 1]
    if not kept:
        there = "; ".join(_sizes_of(found))
        _, workers = words_for(one.point.device for one in found)
        raise UsageError(
            f"records of {workload} are of one size only ({there}), and scaling compares several",
            f"Run it on another number of {workers}, or project it with --project 2,4",
        )
    return kept


def _sizes_of(found: Iterable[Found]) -> list[str]:
    """Return the sizes in words, e.g. `p4d: 8 GPUs, batch 64`."""
    said = [
        f"{one.point.instance}: {workers(one.point.world_size, one.point.device)}"
        f"{f', batch {one.point.batch_size}' if one.point.batch_size else ''}"
        f"{f', {in_micro_batches(pieces)}' if (pieces := one.point.grad_accumulation or 1) > 1 else ''}"
        for one in found
    ]
    return list(dict.fromkeys(said))


def _without_reference(found: Sequence[Found], reference: str) -> list[str]:
    """Return a line if the reference mode has no record. Raises UsageError for an unknown mode."""
    there = sorted({name for one in found for name in names_of(one.point)})
    if reference in there:
        return []
    registry.find_mode(reference)
    return [
        f"no record of {reference}, so nothing is compared with it; choose one with --reference ({', '.join(there)})"
    ]


def _pricing_day(records: Sequence[Record], figures: Sequence[ThroughputRecord], options: CompareOptions) -> date:
    """Return the day of prices, as `compare` does: today or, if all are published figures, the day of the newest."""
    if options.as_of is not None:
        return options.as_of
    days = [one.provenance.published_on if one.provenance else None for one in (*records, *figures)]
    known = [day for day in days if day is not None]
    return max(known) if known and len(known) == len(days) else options.today


def _called(record: Record) -> str:
    what = record.what
    device = record.config.device if record.config else "cuda"
    return f"{record.instance}:{what.mode} on {workers(what.world_size, device)}"


def _with_micro_batches(record: Record) -> tuple[str, int | None]:
    return _called(record), record.config.grad_accumulation if record.config else None


def gather(
    question: Question, options: CompareOptions, catalog: Catalog, results_dir: results.Folders, unread: Unread
) -> Scaled:
    """Compare the records of a folder and those installed with fp8bench; raises as `scaled`. unread: called with the
    files that could not be read, each once.
    """
    found = results.read(results_dir, options.instances)
    figures = results.read_kind(results_dir, options.instances, ThroughputRecord)
    unread([one for one in figures.broken if one not in found.broken])

    def answer(records: list[Record], whole: Whole) -> Scaled:
        return scaled(records, figures, question, options, catalog, results_dir, whole)

    return results.read_on_demand(found, unread, answer)
