"""Checks that every record is complete and agrees with itself, and finds records that no table shows any more.

Verifying reads each file strictly and to its end, which a search does not do, and checks each run against itself (see
`contradictions`). For pruning, a record is superseded if a
later session has the same variant on the same machine and software, or, for another kind, if a later record has the
same work. A failed run says nothing that its successor needs. An invalid run stays as long as it decides a row, because
what is proved in one process and not in the next is not proved.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8bench.records import instances, layout
from fp8bench.records.files import Broken, record_files, strayed
from fp8bench.records.layout import Head
from fp8bench.records.results import PUBLISHED
from fp8bench.records.rewrite import Models, name_twice
from fp8bench.records.select import grouped, latest_alike, mode, select, session
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import bytes_of, read_text
from fp8bench.schema.instance import read_own
from fp8bench.schema.record import Record, RecordHead


@dataclass(frozen=True)
class Bad:
    """A file that is not what it should be. path: relative to the folder."""

    path: str
    reason: str


@dataclass(frozen=True)
class Audit:
    """The result of verifying. read: the number of files. bad: files with faults, and those that cannot be read."""

    read: int
    bad: tuple[Bad, ...]


@dataclass(frozen=True)
class Spent:
    """A record that can be removed. path: of its file. reason: in words."""

    record: RecordHead
    path: Path
    reason: str


def verify(folder: Path, models: Models) -> Audit:
    """Verify every record below the folder, and every instance's file."""
    paths = list(record_files(folder))
    there: dict[Path, set[str]] = {}
    for head in (layout.head(path, layout.WHOSE) for path in paths if isinstance(path, Path)):
        if isinstance(head, Head):
            there.setdefault(head.path.parent, set()).add(head.instance)
    bad = []
    for path in paths:
        if isinstance(path, Broken):
            bad.append(Bad(_below(path.path, folder), path.reason))
        elif reason := _fault(path, models, there.get(path.parent, frozenset())):
            bad.append(Bad(_below(path, folder), reason))
    own = instances.files(folder)
    bad += [Bad(_below(path, folder), reason) for path in own if (reason := _fault_of_instance(path))]
    return Audit(len(paths) + len(own), tuple(bad))


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _fault(path: Path, models: Models, there: Collection[str]) -> str:
    """Return the fault of a record's file; empty if there is none. there: the instances of all records beside it."""
    record = _read(path, models)
    if isinstance(record, Broken):
        return record.reason if record.line is None else f"line {record.line}: {record.reason}"
    twice = name_twice(bytes_of(path))
    if twice is not None:
        return f"has the name {twice!r} twice"
    if record.run_id != path.stem:
        return f"is a copy or was renamed: its run id is {record.run_id}"
    if not record.fingerprint and not isinstance(record, Record):
        return "field fingerprint: it is empty"
    stray = strayed(path, record.instance, there) if path.parent.name != PUBLISHED else None
    return stray.reason if stray is not None else ""


def _read(path: Path, models: Models) -> RecordHead | Broken:
    head = layout.head(path)
    if isinstance(head, Broken):
        return head
    if head.kind not in models:
        reason = f"is of the unknown kind {head.kind!r}"
        return Broken(path, None, reason, UsageError(f"{path} {reason}", "Upgrade fp8bench, or move the file away"))
    return layout.whole(path, models[head.kind])


def _fault_of_instance(path: Path) -> str:
    try:
        read_own(read_text(path), path)
    except UsageError as error:
        return error.what
    return ""


def spent(folder: Path, models: Models) -> tuple[list[Spent], list[Broken]]:
    """Return what can be removed from the folder, sorted by file, and what cannot be read, which is never removed."""
    paths: dict[str, Path] = {}
    records: list[RecordHead] = []
    broken: list[Broken] = []
    for path in record_files(folder):
        record = path if isinstance(path, Broken) else _light(path, models)
        if isinstance(record, Broken):
            broken.append(record)
        elif isinstance(path, Path) and path.parent.name != PUBLISHED and record.source == "measured":
            paths[record.run_id] = path
            records.append(record)
    records.sort(key=lambda one: one.created_utc)
    found = [Spent(one, paths[one.run_id], reason) for one, reason in _reasons(records)]
    return sorted(found, key=lambda one: one.path), broken


def _light(path: Path, models: Models) -> RecordHead | Broken:
    head = layout.head(path)
    return layout.light(head) if isinstance(head, Head) and head.kind == layout.RUN else _read(path, models)


def _reasons(records: Sequence[RecordHead]) -> Iterator[tuple[RecordHead, str]]:
    """Yield the records that can be removed, with the reason. records: oldest first."""
    runs = [one for one in records if isinstance(one, Record)]
    for of_instance in grouped(runs, lambda one: one.instance).values():
        yield from _reasons_of_runs(of_instance)
    others = [one for one in records if not isinstance(one, Record)]
    for of_kind in grouped(others, lambda one: str(getattr(one, "kind", ""))).values():
        latest = {one.run_id for one in latest_alike(of_kind)}
        yield from ((one, "superseded by a later one") for one in of_kind if one.run_id not in latest)


def _reasons_of_runs(runs: Sequence[Record]) -> Iterator[tuple[Record, str]]:
    chosen = select(runs, every=False)
    in_tables = {one.run_id for row in chosen for one in row.rounds}
    kept_sessions = {(session(one), mode(one)) for row in chosen for one in row.rounds}
    for one in runs:
        if one.status in ("failed", "unsupported"):
            yield one, f"{one.status}: {one.reason or 'no reason is on record'}"
        elif one.run_id not in in_tables and (session(one), mode(one)) not in kept_sessions:
            yield one, "superseded by a later session"
