"""The measurements that a check takes: one session's, and the reference's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8bench.kinds.kind import Unread
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.select import Filter, Measurement, latest_first, select, session
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record

SHOWN = 3
"""The number of sessions that an error names."""


@dataclass(frozen=True)
class Sessions:
    """now, before: what is checked, and what it is compared with. reference: its name, for a reader."""

    now: tuple[Measurement, ...]
    before: tuple[Measurement, ...]
    reference: str


def find(results_dir: Path, named: str | None, against: str | None, unread: Unread) -> Sessions:
    """Find both sides of a check. named: the session to check, or the beginning of its name; None: the latest in the
    folder. against: a folder of results, whose latest record of each variant is the reference, or a session in
    `results_dir`; None: the checked session itself, for a plan. unread: called with what cannot be read.

    The checked session is never part of its own reference, so a folder may be compared with itself. Raises UsageError
    if either side is empty or unknown, or if both are one session.
    """
    kept = _measured(results_dir)
    if not kept:
        raise results.nothing_found("to check", results_dir, "Run `fp8bench run` first, or name a folder", RUN)
    current = _session(kept, named, "--session") if named is not None else session(latest_first(kept)[0][-1])
    now = _sound(results_dir, unread, lambda record: session(record) == current)
    if against is None:
        return Sessions(now, now, "a reference like it")
    folder = Path(against)
    if folder.is_dir():
        before = _sound(folder, unread, lambda record: session(record) != current)
        reference = str(folder)
        if not before and _sound(folder, unread, lambda record: session(record) == current):
            raise _same_session(current)
    else:
        reference = _reference_session(kept, against, results_dir)
        if reference == current:
            raise _same_session(current)
        before = _sound(results_dir, unread, lambda record: session(record) == reference)
        reference = f"session {reference}"
    if not any(one.latest.status == "ok" for one in before):
        raise UsageError(
            f"{reference} has no measurement that ran, beside session {current}",
            "Name another folder of results, or another session, with --against",
        )
    return Sessions(now, before, reference)


def _same_session(name: str) -> UsageError:
    return UsageError(
        f"both sides are the same session, {name}: it would be compared with itself",
        "Name an earlier one with --against, or another one to check with --session",
    )


def _measured(folder: Path) -> list[Record]:
    """Return every measured run in the folder, oldest first."""
    found = results.read(folder, results.known_instances(folder))
    return Filter(source="measured").of(record for record, _ in found)


def _sound(folder: Path, unread: Unread, wanted: Callable[[Record], bool]) -> tuple[Measurement, ...]:
    """Return the latest measurement of each variant among the wanted records, without rounds that contradict
    themselves.
    """

    def chosen(records: list[Record]) -> list[Measurement]:
        return select([one for one in Filter(source="measured").of(records) if wanted(one)], every=False)

    found = results.read(folder, results.known_instances(folder))
    return tuple(chosen(results.sound(found, unread, lambda left: [r for one in chosen(left) for r in one.rounds])))


def _session(kept: Sequence[Record], name: str, flag: str) -> str:
    """Return the session with that name, or the only one whose name begins with it. Raises UsageError."""
    names = [session(together[0]) for together in latest_first(kept)]
    found = [one for one in names if one.startswith(name)]
    if name in found:
        return name
    if len(found) == 1:
        return found[0]
    latest = ", ".join((found or names)[:SHOWN])
    if found:
        raise UsageError(f"{len(found)} sessions begin with {name!r}", f"Give more of its name: {latest}")
    raise UsageError(f"{flag} {name!r} is no session", f"The latest are: {latest}")


def _reference_session(kept: Sequence[Record], name: str, results_dir: Path) -> str:
    try:
        return _session(kept, name, "--against")
    except UsageError as error:
        if error.what.startswith("--against"):
            what = f"--against {name!r} is neither a folder nor a session in {results_dir}"
            raise UsageError(what, error.remedy) from error
        raise
