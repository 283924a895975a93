"""Checks that every record is complete and agrees with itself, with its raw part, which a search leaves alone."""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
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


class Bad(NamedTuple):
    """A file that is not what it should be. path: relative to the folder."""

    path: str
    reason: str


class Audit(NamedTuple):
    """The result of verifying. read: the number of files. bad: files with faults, and those that cannot be read."""

    read: int
    bad: tuple[Bad, ...]


def verify(folder: Path, models: Mapping[str, type[RecordHead]]) -> Audit:
    """Verify every record below the folder, and every instance's file. models: of each kind's record."""
    paths, own = list(record_files(folder)), instances.files(folder)
    seen = {path: layout.see(path) for path in paths if isinstance(path, Path)}
    there: dict[Path, set[str]] = {}
    for path, file in seen.items():
        if isinstance(file, Seen):
            there.setdefault(path.parent, set()).add(file.instance)
    read = {path: _read(file, models, there.get(path.parent, ())) for path, file in seen.items()}
    runs = {one.run_id: one for one in read.values() if isinstance(one, Record)}
    found = [(path.path, path.reason) for path in paths if isinstance(path, Broken)]
    for path, one in read.items():
        found.append(
            (path, one if isinstance(one, str) else lacks_parity(one, runs) if isinstance(one, Record) else "")
        )
    for path in own:
        try:
            read_own(read_text(path), path)
        except UsageError as error:
            found.append((path, error.what))
    bad = (Bad(os.path.relpath(path, folder), reason) for path, reason in found if reason)
    return Audit(len(paths) + len(own), tuple(bad))


def _read(file: Seen | Broken, models: Mapping[str, type[RecordHead]], there: Collection[str]) -> RecordHead | str:
    """Return a record, or what is wrong with it by itself."""
    if isinstance(file, Seen) and file.kind not in models:
        return f"is of the unknown kind {file.kind!r}"
    record = layout.whole(file.path, models[file.kind]) if isinstance(file, Seen) else file
    if isinstance(record, Broken):
        return record.reason if record.line is None else f"line {record.line}: {record.reason}"
    assert isinstance(file, Seen)
    path = file.path
    if (twice := name_twice(file.text)) is not None:
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
        found.extend(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
        return dict(pairs)

    with suppress(ValueError, RecursionError):
        json.loads(data, object_pairs_hook=seen)
    return found[0] if found else None
