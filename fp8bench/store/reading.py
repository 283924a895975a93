"""One file, read as a record: whole, or without what is most of it. A file that is broken is told, not raised.

`write` lays a record out so that its beginning tells its kind and instance, and so that raw samples, telemetry and the
profile come last: a table of ten thousand records needs a few kilobytes of each. Format 2 had them in the middle and is
read to its end. A record that is laid out otherwise is read whole.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from fp8bench.schema.record import SCHEMA_VERSION, Record, RecordHead
from fp8bench.store.broken import Broken, invalid, newer, no_samples, unreadable
from fp8bench.store.migrate import SAME_BUT_FOR_THE_NUMBER, is_old, migrate

SomeRecord = TypeVar("SomeRecord", bound=RecordHead)

RUN = "run"
HEAD_BYTES = 8192
"""Enough for most records without their heavy sections, and for every one's instance."""

_BEGINNING = re.compile(rb'\s*\{\s*"schema_version":\s*(\d{1,9})\s*,\s*"kind":\s*"(\w+)"')
_INSTANCE = re.compile(rb'\n "instance": "([^"\\]+)"')
_CLOSES = {b"[": b"\n ]", b"{": b"\n }"}
_HEAVY = {b"samples": b"[]", b"telemetry": b"[]", b"profile": b"null"}
"""Sections that are most of a record, and what stands for them where they are left out."""

_FIRST_HEAVY = b',\n "samples": '


@dataclass(frozen=True)
class Head:
    """The beginning of a file, and what it says of the whole. size: of the file, bytes."""

    path: Path
    data: bytes
    size: int
    kind: str
    instance: str


def head(path: Path) -> Head | Broken:
    """What kind of record a file is, and of which instance, read from its beginning where that says so."""
    try:
        data, size = _beginning(path)
        begins, instance = _BEGINNING.match(data), _INSTANCE.search(data)
        if begins and instance:
            return Head(path, data, size, begins[2].decode(), instance[1].decode("utf-8", "replace"))
        data = path.read_bytes()
    except OSError as error:
        return unreadable(path, error)
    document = _document(data)
    if document is None or not isinstance(document.get("instance"), str):
        return _refused(data, path)
    return Head(path, data, len(data), str(document.get("kind", RUN)), document["instance"])


def light(found: Head) -> Record | Broken:
    """A run without its samples, telemetry and profile, which stay unread, whatever is wrong with them."""
    cut = found.data.find(_FIRST_HEAVY)
    version = _version(found.data)
    try:
        if cut >= 0 and version == SCHEMA_VERSION and _ends_well(found):
            return _parsed(found.data[:cut] + b"\n}", found.path, Record)
        data = found.data if len(found.data) == found.size else found.path.read_bytes()
    except OSError as error:
        return unreadable(found.path, error)
    if version not in SAME_BUT_FOR_THE_NUMBER:
        return _parsed(data, found.path, Record)
    record = _parsed(_without_heavy(data), found.path, Record)
    if isinstance(record, Broken):
        return _parsed(_without_heavy(data, keep_lines=True), found.path, Record)
    return record


def whole(path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """All of a record, strictly. model: the class of its kind, which it must be of."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return unreadable(path, error)
    record = _parsed(data, path, model)
    if isinstance(record, Record) and record.status == "ok" and record.source == "measured" and not record.samples:
        return no_samples(path)
    return record


def _beginning(path: Path) -> tuple[bytes, int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, HEAD_BYTES), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _ends_well(found: Head) -> bool:
    """Whether a record was written to its end, as far as its last bytes say."""
    if len(found.data) == found.size:
        return found.data.rstrip().endswith(b"}")
    with found.path.open("rb") as file:
        file.seek(-2, os.SEEK_END)
        return file.read().rstrip() == b"}"


def _without_heavy(data: bytes, keep_lines: bool = False) -> bytes:
    """The same record without its heavy sections; keep_lines: with their lines left, so that faults are told by line.

    They are found by the indent of one space that `write` gives them. A string in JSON holds no line break, so nothing
    else can look like that; a record that is laid out otherwise is left as it is.
    """
    for name, nothing in _HEAVY.items():
        key = b'\n "%s": ' % name
        start = data.find(key) + len(key)
        end = data.find(_CLOSES.get(data[start : start + 1], key), start)
        if start < len(key) or end < 0:
            continue
        end += len(b"\n ]")
        lines = b"\n" * data.count(b"\n", start, end) if keep_lines else b""
        data = b"".join((data[:start], nothing, lines, data[end:]))
    return data


def _parsed(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    version = _version(data)
    if version is not None and version > SCHEMA_VERSION:
        return newer(path, version)
    try:
        return model.model_validate_json(_of_this_version(data, version))
    except ValidationError as error:
        return invalid(path, error, data.decode("utf-8", "replace"))


def _refused(data: bytes, path: Path) -> Broken:
    """Why a file that names no instance is no record, which every record does."""
    record = _parsed(data, path, Record)
    assert isinstance(record, Broken)
    return record


def _version(data: bytes) -> int | None:
    begins = _BEGINNING.match(data)
    if begins:
        return int(begins[1])
    document = _document(data)
    version = document.get("schema_version") if document else None
    return version if isinstance(version, int) else None


def _of_this_version(data: bytes, version: int | None) -> bytes:
    """The same bytes, or those of an older format as this one would have them."""
    if version == SCHEMA_VERSION or not is_old(version):
        return data
    begins = _BEGINNING.match(data)
    if begins and version in SAME_BUT_FOR_THE_NUMBER:
        return b"%s%d%s" % (data[: begins.start(1)], SCHEMA_VERSION, data[begins.end(1) :])
    document = _document(data)
    return json.dumps(migrate(document)).encode() if document else data


def _document(data: bytes) -> dict[str, Any] | None:
    try:
        document = from_json(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
