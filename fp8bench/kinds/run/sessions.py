"""Sessions of runs: two as the sides of a check, all as nights (`check --history`), and where one's seconds went."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, get_args

from fp8bench.kinds.kind import Unread
from fp8bench.kinds.run.rounds import unit_time
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.results import Found, Kept
from fp8bench.records.select import Filter, Key, Measurement, execution, grouped, latest_first, planned, select, session
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import suffix
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import changes
from fp8bench.schema.record import Phase, Record
from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import FEWEST_NIGHTS, changed_at, ratio
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import Interval, change, counted, number


class Sides(NamedTuple):
    """now, before: what is checked, and what it is compared with. reference: its name, for a reader. nights,
    nights_before: the same with earlier sessions, oldest first; empty if sessions are no nights.
    """

    now: tuple[Measurement, ...]
    before: tuple[Measurement, ...]
    reference: str
    nights: tuple[Measurement, ...] = ()
    nights_before: tuple[Measurement, ...] = ()


def ran(one: Measurement) -> bool:
    """Return whether it is a measurement, and not a run that stopped."""
    return one.latest.status == "ok"


def find(results_dir: Path, named: str | None, against: str | None, unread: Unread, nights: bool = False) -> Sides:
    """Find both sides of a check. named: the session to check, or the beginning of its name; None: the latest. against:
    a folder of results, whose latest record of each variant is the reference, or a session in `results_dir`; None: the
    checked session itself, for a plan. nights: whether sessions are nights of one host, which are judged together. The
    checked session is never part of its own reference, so a folder may be compared with itself. Raises UsageError if
    either side is empty or unknown, or if both are one session.
    """
    found = read(results_dir)
    kept = Filter(source="measured").of(record for record, _ in found)
    if not kept:
        raise results.nothing_found("to check", results_dir, "Run `fp8bench run` first, or name a folder", RUN)
    current = session(latest_first(kept)[0][-1])
    if named is not None:
        current = _session(kept, named, f"--session {named!r} is no session")
    now = _sound(found, unread, lambda record: session(record) == current)
    if against is None:
        return Sides(now, now, "a reference like it")
    folder, name = Path(against), None
    if not folder.is_dir():
        if nights:
            raise UsageError("--nights needs the nights of a reference", "Name a folder of results with --against")
        name = _session(kept, against, f"--against {against!r} is neither a folder nor a session in {results_dir}")
    theirs, reference = (found, f"session {name}") if name else (read(folder), against)
    before = _sound(theirs, unread, lambda r: session(r) == name if name else session(r) != current)
    if name == current or (not (name or before) and _sound(theirs, unread, lambda r: session(r) == current)):
        remedy = "Name an earlier one with --against, or another one to check with --session"
        raise UsageError(f"both sides are the same session, {current}: it would be compared with itself", remedy)
    if not any(map(ran, before)):
        remedy = "Name another folder of results, or another session, with --against"
        raise UsageError(f"{reference} has no measurement that ran, beside session {current}", remedy)
    if not nights:
        return Sides(now, before, reference)
    of_reference = by_session(theirs, unread, lambda record: session(record) != current)
    known = {session(one.latest) for one in of_reference}
    # A reference begins with a change that was meant.
    since, until = (pick(one.latest.created_utc for one in side) for pick, side in ((min, of_reference), (max, now)))
    ours = by_session(found, unread, lambda r: session(r) not in known and since <= r.created_utc <= until)
    return Sides(now, before, reference, ours, of_reference)


def read(folder: Path) -> Found[Kept[Record]]:
    """Return every run in the folder, and what is broken."""
    return results.read(folder, results.known_instances(folder))


def by_session(
    found: Found[Kept[Record]], unread: Unread, wanted: Callable[[Record], bool] = lambda _record: True
) -> tuple[Measurement, ...]:
    """Return the measurements that ran of each session, oldest first. unread: as of `find`."""
    each = _sound(found, unread, wanted, session)
    return tuple(sorted(filter(ran, each), key=lambda one: one.latest.created_utc))


def _sound(
    found: Found[Kept[Record]],
    unread: Unread,
    wanted: Callable[[Record], bool],
    apart: Callable[[Record], object] = lambda _record: None,
) -> tuple[Measurement, ...]:
    # Without rounds that contradict themselves.
    def chosen(records: list[Record]) -> list[Measurement]:
        groups = grouped(filter(wanted, Filter(source="measured").of(records)), apart)
        return [one for together in groups.values() for one in select(together, every=False)]

    return tuple(chosen(results.sound(found, unread, lambda left: [r for one in chosen(left) for r in one.rounds])))


def _session(kept: Sequence[Record], name: str, unknown: str) -> str:
    # The one whose name this is or begins. unknown: what is said if there is none.
    names = [session(together[0]) for together in latest_first(kept)]
    found = [name] if name in names else [one for one in names if one.startswith(name)]
    if len(found) == 1:
        return found[0]
    latest = ", ".join((found or names)[:3])
    if found:
        raise UsageError(f"{len(found)} sessions begin with {name!r}", f"Give more of its name: {latest}")
    raise UsageError(unknown, f"The latest are: {latest}")


class Night(Frozen):
    """One session of a variant. step_time_s: seconds, its mean over the session's processes."""

    session: str
    created_utc: datetime
    step_time_s: float
    rounds: int


class History(Frozen):
    """A variant over nights, oldest first. changed_at: the session of the first night after a change. change: the step
    time from then on over that before, minus 1, with its interval over nights. versions: what changed with it.
    """

    variant: str
    nights: tuple[Night, ...]
    changed_at: str | None = None
    change: float | None = None
    change_ci: Interval | None = None
    versions: tuple[str, ...] = ()


def histories(measured: Iterable[Measurement]) -> list[History]:
    """Return the history of each variant. measured: as `by_session` returns it."""

    def variant(one: Measurement) -> Key:
        record = one.latest
        return record.instance, record.machine and record.machine.id, planned(record), execution(record)

    of_variant = grouped(measured, variant).values()
    several = len({together[0].latest.what.workload for together in of_variant}) > 1
    return [_history(together, several) for together in of_variant]


def _history(together: Sequence[Measurement], several: bool) -> History:
    timed = [(one, time, one.latest.summary) for one in together if one.latest.summary and (time := unit_time(one))]
    nights = tuple(
        Night(
            session=session(one.latest),
            created_utc=one.rounds[0].created_utc,
            step_time_s=time.by_elapsed.value * summary.units_per_step,
            rounds=len(one.rounds),
        )
        for one, time, summary in timed
    )
    record, what = together[-1].latest, together[-1].latest.what
    of = f"{what.workload}, " if several else ""
    variant = f"{what.mode_label}{suffix(execution(record))}, {of}{what.batch_size} x {what.world_size}"
    by_elapsed = [time.by_elapsed for _, time, _ in timed]
    place = changed_at(by_elapsed)
    if place is None:
        return History(variant=variant, nights=nights)
    before, after = ([one.value for one in of] for of in (by_elapsed[:place], by_elapsed[place:]))
    compared = ratio(estimate(after), estimate(before))
    return History(
        variant=variant,
        nights=nights,
        changed_at=nights[place].session,
        change=compared.value - 1,
        change_ci=compared.interval and (compared.interval[0] - 1, compared.interval[1] - 1),
        versions=tuple(changes(timed[place - 1][0].software, timed[place][0].software).values()),
    )


def document(measured: Sequence[Measurement], results_dir: Path) -> doc.Document:
    """Return the document. Raises UsageError if nothing ran."""
    found = histories(measured)
    if not found:
        raise results.nothing_found("of any night", results_dir, "Run `fp8bench run` first, or name a folder", RUN)
    began = {night.session: night.created_utc for one in reversed(found) for night in one.nights}
    nights = sorted(began, key=began.__getitem__)
    columns: list[Column[str]] = [word("night, UTC", lambda name: f"{began[name]:%Y-%m-%d %H:%M}")]
    for one in found:
        steps = {night.session: number(night.step_time_s, ".1f", 1e3) for night in one.nights}
        if one.changed_at is not None:
            steps[one.changed_at] = f"> {steps[one.changed_at]}"
        columns.append(Column(f"{one.variant}, ms", steps.get, str))
    lines = (
        (one.variant, *night.model_dump(mode="json").values(), night.session == one.changed_at)
        for one in found
        for night in one.nights
    )
    return doc.Document(
        doc.blocks([table_of(columns, nights)], [doc.Sentence(sentence(one)) for one in found]),
        data=[one.model_dump(mode="json") for one in found],
        lines=doc.CsvLines(("variant", *Night.model_fields, "changed"), tuple(lines)),
    )


def sentence(history: History) -> str:
    """Return at which night the variant changed, and by how much, or that it did not."""
    night = next((one for one in history.nights if one.session == history.changed_at), None)
    if night is not None:
        why = f": {', '.join(history.versions)}" if history.versions else ""
        by = change(history.change, history.change_ci)
        return f"{history.variant} changed at {night.created_utc:%Y-%m-%d} (session {night.session}), by {by}{why}."
    count = len(history.nights)
    few = f", too few to tell: {FEWEST_NIGHTS} or more can" if count < FEWEST_NIGHTS else ""
    return f"{history.variant}: no change in {counted(count, 'night')}{few}."


def seconds(records: Sequence[Record]) -> list[doc.Part]:
    """Return a table of phases by mode, of all its rounds together; a note if no record says, as in older formats."""
    by_mode: dict[str, Counter[str]] = {}
    for record in records:
        if record.phases_s:
            by_mode.setdefault(record.what.mode_label, Counter()).update(record.phases_s)
    if not by_mode:
        return [doc.Note("The records of this session do not say where its seconds went.")]
    words = {
        "prepare": "fp8bench itself",
        "start": "start and imports",
        "warm_up": "warm-up and compile",
        "timed": "timed steps",
    }
    every = sum(by_mode.values(), Counter[str]())
    columns: list[Column[str]] = [word("phase", lambda phase: words.get(phase, phase))]
    for mode, sums in {**by_mode, **({"all": every} if len(by_mode) > 1 else {})}.items():
        columns.append(Column(f"{mode}, s", {**+sums, "together": sum(sums.values())}.get, ".1f"))
    rows = [*filter(every.get, get_args(Phase)), "together"]
    return [table_of(columns, rows, emphasis=lambda phase: "strong" if phase == "together" else "")]
