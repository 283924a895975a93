"""Checks that every record is complete and agrees with itself: reads each file with its raw part, which a search does
not do, and checks each run against itself (see `contradictions`). Shows files that are bad, and those that were sent.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8bench.records import instances, layout
from fp8bench.records.files import Broken, record_files, strayed
from fp8bench.records.layout import Seen
from fp8bench.records.results import PUBLISHED
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import bytes_of, read_text
from fp8bench.schema.instance import read_own
from fp8bench.schema.record import Record, RecordHead
from fp8bench.tables.document import Cells, CsvLines, Document, Part, Sentence, Table, Warned, blocks
from fp8bench.tables.written import counted

Models = Mapping[str, type[RecordHead]]
"""The model of each kind's record."""


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


def verify(folder: Path, models: Models) -> Audit:
    """Verify every record below the folder, and every instance's file."""
    paths = list(record_files(folder))
    there: dict[Path, set[str]] = {}
    for one in (layout.see(path) for path in paths if isinstance(path, Path)):
        if isinstance(one, Seen):
            there.setdefault(one.path.parent, set()).add(one.instance)
    bad = []
    for path in paths:
        if isinstance(path, Broken):
            bad.append(Bad(_below(path.path, folder), path.reason))
        elif reason := _fault(path, models, there.get(path.parent, frozenset())):
            bad.append(Bad(_below(path, folder), reason))
    own = instances.files(folder)
    for path in own:
        try:
            read_own(read_text(path), path)
        except UsageError as error:
            bad.append(Bad(_below(path, folder), error.what))
    return Audit(len(paths) + len(own), tuple(bad))


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _fault(path: Path, models: Models, there: Collection[str]) -> str:
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
    found = layout.see(path)
    if isinstance(found, Broken):
        return found
    if found.kind not in models:
        return Broken(path, f"is of the unknown kind {found.kind!r}", "Upgrade fp8bench, or move the file away")
    return layout.whole(path, models[found.kind])


def name_twice(data: bytes) -> str | None:
    """Return a name that an object of a JSON document has twice (readers keep the last value), or None."""
    found: list[str] = []

    def seen(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):
            found.extend(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        return names

    try:
        json.loads(data, object_pairs_hook=seen)
    except (ValueError, RecursionError):
        return None
    return found[0] if found else None


def pushed(address: str, sent: Sequence[str], same: Sequence[str], refused: Sequence[str]) -> Document:
    """Show the result for each file; files that were already there are only counted."""
    rows = [*(("sent", name) for name in sent), *(("refused", name) for name in refused)]
    said = f"{address}: {counted(len(sent), 'file')} sent, {len(same)} there already, {len(refused)} refused."
    warned = (
        [Warned("a refused file has the name of another one there, which is kept, or is a link out of the folder")]
        if refused
        else []
    )
    return _document(
        rows, ("result", "file"), [Sentence(said), *warned],
        {"address": address, "sent": list(sent), "same": list(same), "refused": list(refused)},
    )  # fmt: skip


def verified(where: str, audit: Audit) -> Document:
    rows = [(one.path, one.reason) for one in audit.bad]
    said = f"{where}: {counted(audit.read, 'file')} read, {len(rows)} bad."
    data = {"where": where, "read": audit.read, "bad": [{"file": path, "reason": reason} for path, reason in rows]}
    return _document(rows, ("file", "reason"), [Sentence(said)], data)


def _document(rows: Sequence[tuple[str, ...]], headings: tuple[str, ...], said: list[Part], data: Any) -> Document:
    texts = zip(*rows, strict=True)
    table = (
        [Table(tuple(Cells(heading, of, "word") for heading, of in zip(headings, texts, strict=True)))] if rows else []
    )
    return Document(blocks(table, said), data=data, lines=CsvLines(headings, tuple(rows)))
