"""Both sides of a check, found among records: what is checked, and its reference. `check` compares them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fp8bench.kinds.kind import Unread
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.results import Found, Kept
from fp8bench.records.select import Filter, Measurement, grouped, latest_first, select, session
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

Wanted = Callable[[Record], bool]
"""A function that returns whether a record is one of a side."""


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
    checked session itself, for a plan. unread: called with what cannot be read. nights: whether sessions are nights of
    one host, which are judged together.

    The checked session is never part of its own reference, so a folder may be compared with itself. Raises UsageError
    if either side is empty or unknown, or if both are one session.
    """
    found = _read(results_dir)
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
    theirs, reference = (found, f"session {name}") if name else (_read(folder), against)
    before = _sound(theirs, unread, lambda r: session(r) == name if name else session(r) != current)
    if name == current or (not (name or before) and _sound(theirs, unread, lambda r: session(r) == current)):
        raise UsageError(
            f"both sides are the same session, {current}: it would be compared with itself",
            "Name an earlier one with --against, or another one to check with --session",
        )
    if not any(map(ran, before)):
        raise UsageError(
            f"{reference} has no measurement that ran, beside session {current}",
            "Name another folder of results, or another session, with --against",
        )
    if not nights:
        return Sides(now, before, reference)
    of_reference = _by_session(theirs, unread, lambda record: session(record) != current)
    known = {session(one.latest) for one in of_reference}
    # A reference begins with a change that was meant.
    since, until = (pick(one.latest.created_utc for one in side) for pick, side in ((min, of_reference), (max, now)))
    ours = _by_session(found, unread, lambda r: session(r) not in known and since <= r.created_utc <= until)
    return Sides(now, before, reference, ours, of_reference)


def by_session(folder: Path, unread: Unread) -> tuple[Measurement, ...]:
    """Return the measurements that ran of each session in the folder, oldest first. unread: as of `find`."""
    return _by_session(_read(folder), unread, lambda _record: True)


def _read(folder: Path) -> Found[Kept[Record]]:
    return results.read(folder, results.known_instances(folder))


def _by_session(found: Found[Kept[Record]], unread: Unread, wanted: Wanted) -> tuple[Measurement, ...]:
    each = _sound(found, unread, wanted, session)
    return tuple(sorted(filter(ran, each), key=lambda one: one.latest.created_utc))


def _sound(
    found: Found[Kept[Record]],
    unread: Unread,
    wanted: Wanted,
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
