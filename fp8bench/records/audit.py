"""Checks that every record is complete and agrees with itself, with its raw part, which a search leaves alone."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fp8bench.records import instances, layout
from fp8bench.records.files import Broken
from fp8bench.records.results import PUBLISHED, lacks_parity
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import read_text, text_if_any
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
    here, own = layout.survey(folder), instances.files(folder)
    bad = {one.path: one.reason for one in here.broken}
    runs: dict[Path, Record] = {}
    for one in here.seen:
        path, model = one.path, models.get(one.kind)
        astray = here.astray(one) if path.parent.name != PUBLISHED else None
        record = layout.whole(path, model) if model else Broken(path, f"is of the unknown kind {one.kind!r}")
        if isinstance(record, Broken):
            bad[path] = record.reason
        elif (twice := name_twice(text_if_any(path))) is not None:
            bad[path] = f"has the name {twice!r} twice"
        elif record.run_id != path.stem:
            bad[path] = f"is a copy or was renamed: its run id is {record.run_id}"
        elif not record.fingerprint and not isinstance(record, Record):
            bad[path] = "field fingerprint: it is empty"
        elif astray:
            bad[path] = astray.reason
        elif isinstance(record, Record):
            runs[path] = record
    there = {record.run_id: record for record in runs.values()}
    bad |= {path: why for path, record in runs.items() if (why := lacks_parity(record, there))}
    for path in own:
        try:
            read_own(read_text(path), path)
        except UsageError as error:
            bad[path] = error.what
    files = len(here.seen) + len(here.broken) + len(own)
    return Audit(files, tuple(Bad(os.path.relpath(path, folder), reason) for path, reason in bad.items()))


def name_twice(text: bytes | str) -> str | None:
    """Return a name that an object of a JSON document has twice (readers keep the last value), or None."""
    found: list[str] = []

    def seen(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
        return dict(pairs)

    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=seen)
    return found[0] if found else None
