"""Rewrites records of older formats in the current one: their content is the same, and a program that reads only the
current format can use them.

Readers accept every older format, so nothing depends on this. A file is replaced by a rename, after the new text was
read back and found equal to what was read before. If the new file contains less than the old one (for format 1, the
state of a GPU before and after), the old file stays next to it under another name. A file that cannot be read, a link,
and a file that has a name twice are left as they are, and reported.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8bench.records import layout
from fp8bench.records.files import Broken, record_files
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.files import bytes_of, write_atomically
from fp8bench.schema.record import SCHEMA_VERSION, RecordHead

Models = Mapping[str, type[RecordHead]]
"""The model of each kind's record."""


@dataclass(frozen=True)
class Older:
    """A record of an older format. text: in today's. kept: where the old file goes; None if the new one has it all."""

    path: Path
    version: int
    text: str
    kept: Path | None


@dataclass(frozen=True)
class Left:
    """A file that is left as it is, and why."""

    path: Path
    reason: str


def older(folder: Path, models: Models) -> Iterator[Older | Left]:
    """Yield every record below the folder that is not of today's format, and every file that cannot be read."""
    for path in record_files(folder):
        if isinstance(path, Broken):
            yield Left(path.path, path.reason)
            continue
        found = _looked_at(path, models)
        if found is not None:
            yield found


def _looked_at(path: Path, models: Models) -> Older | Left | None:
    """Return an older record, or why the file is left; None for a record of today's format."""
    head = layout.head(path, layout.WHOSE)
    if isinstance(head, Broken):
        return Left(path, head.reason)
    if head.kind not in models:
        return Left(path, f"is of the unknown kind {head.kind!r}")
    version = head.fields.get("schema_version")
    if version == SCHEMA_VERSION:
        return None
    record = layout.whole(path, models[head.kind])
    if isinstance(record, Broken):
        return Left(path, record.reason)
    data = bytes_of(path)
    twice = name_twice(data)
    if twice is not None:
        return Left(path, f"has the name {twice!r} twice")
    if path.is_symlink():
        return Left(path, "is a link: migrate the folder that it leads to")
    old = json.loads(data)
    text = layout.text_of(record)
    whole = all(_holds(json.loads(text).get(name), value) for name, value in old.items() if name != "schema_version")
    kept = None if whole else path.with_name(f"{path.name}.v{version}")
    return Older(path, int(str(version)), text, kept)


def rewrite(one: Older, models: Models) -> None:
    """Replace the file. If it cannot be written or does not read the same, raise RunFailed and change nothing."""
    try:
        before = bytes_of(one.path)
        head = layout.head(one.path, layout.WHOSE)
        if isinstance(head, Broken):
            raise RunFailed(f"{head}", "Run the command again")
        model = models[head.kind]
        if model.model_validate_json(one.text) != layout.whole(one.path, model):
            raise RunFailed(f"{one.path} does not read the same in today's format", "Report it; the file is unchanged")
        if one.kept is not None and not (one.kept.exists() and one.kept.read_bytes() == before):
            write_atomically(one.kept, before, replace=False)
        write_atomically(one.path, one.text, replace=True)
    except OSError as error:
        raise RunFailed(
            f"cannot write {one.path}: {error.strerror}", "Make room or see its permissions, and run the command again"
        ) from error


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


def _holds(new: Any, old: Any) -> bool:
    """Return whether a value contains all that an older one does. What is null was not known."""
    if old is None:
        return True
    if isinstance(old, dict):
        return isinstance(new, dict) and all(_holds(new.get(name), value) for name, value in old.items())
    if isinstance(old, list):
        same_length = isinstance(new, list) and len(new) == len(old)
        return same_length and all(_holds(one, other) for one, other in zip(new, old, strict=True))
    return new == old or str(new) == str(old) or _same_moment(new, old)


def _same_moment(new: Any, old: Any) -> bool:
    """Return whether two texts are the same time, which may be written in two ways."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(new) == datetime.fromisoformat(old)
    except (TypeError, ValueError):
        return False
