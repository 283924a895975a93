"""Checks that every record is complete and agrees with itself, with its raw part, which a search leaves alone."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fp8bench.records import instances, layout
from fp8bench.records.files import Broken, record_files, strayed
from fp8bench.records.layout import Seen
from fp8bench.records.results import PUBLISHED, lacks_parity
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import read_text
from fp8bench.schema.instance import read_own
from fp8bench.schema.record import Record, RecordHead

Models = Mapping[str, type[RecordHead]]
"""The model of each kind's record."""


class Bad(NamedTuple):
    """A file that is not what it should be. path: relative to the folder."""

    path: str
    reason: str


class Audit(NamedTuple):
    """The result of verifying. read: the number of files. bad: files with faults, and those that cannot be read."""

    read: int
    bad: tuple[Bad, ...]


def verify(folder: Path, models: Models) -> Audit:
    """Verify every record below the folder, and every instance's file."""
    paths, own = list(record_files(folder)), instances.files(folder)
    seen = {path: layout.see(path) for path in paths if isinstance(path, Path)}
    there: dict[Path, set[str]] = {}
    for path, file in seen.items():
        if isinstance(file, Seen):
            there.setdefault(path.parent, set()).add(file.instance)
    read = {path: _read(file, models, there.get(path.parent, ())) for path, file in seen.items()}
    runs = {one.run_id: one for one in read.values() if isinstance(one, Record)}
    bad: list[Bad] = []

    def found(path: Path, reason: str) -> None:
        if reason:
            bad.append(Bad(path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path), reason))

    for broken in (path for path in paths if isinstance(path, Broken)):
        found(broken.path, broken.reason)
    for path, one in read.items():
        found(path, one if isinstance(one, str) else lacks_parity(one, runs) if isinstance(one, Record) else "")
    for path in own:
        try:
            read_own(read_text(path), path)
        except UsageError as error:
            found(path, error.what)
    return Audit(len(paths) + len(own), tuple(bad))


def _read(file: Seen | Broken, models: Models, there: Collection[str]) -> RecordHead | str:
    """Return a record, or what is wrong with it by itself."""
    if isinstance(file, Seen) and file.kind not in models:
        return f"is of the unknown kind {file.kind!r}"
    record = layout.whole(file.path, models[file.kind]) if isinstance(file, Seen) else file
    if isinstance(record, Broken):
        return record.reason if record.line is None else f"line {record.line}: {record.reason}"
    assert isinstance(file, Seen)
    path, twice = file.path, name_twice(file.text)
    if twice is not None:
        return f"has the name {twice!r} twice"
    if record.run_id != path.stem:
        return f"is a copy or was renamed: its run id is {record.run_id}"
    if not record.fingerprint and not isinstance(record, Record):
        return "field fingerprint: it is empty"
    stray = strayed(path, record.instance, there) if path.parent.name != PUBLISHED else None
    return record if stray is None else stray.reason


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
