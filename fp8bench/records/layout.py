"""How a record lies in its file, and how one file is read: whole, or its head alone. A broken file is told, not raised.

A record is one JSON document. `text_of` writes each field on a line of its own, and each element of an array of objects
likewise, with arrays of numbers on one line. Fields stand in the model's order: what it is and of which instance first,
its sections (`Record.sections`: raw samples, telemetry, the profile) last. So a reader that wants the head parses the
beginning of a file, until no field of the head is missing, and leaves the sections unread; ten thousand records take a
few kilobytes each.

Nothing depends on the lines: a record that is laid out otherwise (up to format 3 each number had a line of its own, and
format 2 had the sections in the middle) is read by the same rule, to its end where its head takes that long.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from fp8bench.records.broken import Broken, invalid, newer, no_samples, unreadable
from fp8bench.records.migrate import migrate
from fp8bench.schema.record import SCHEMA_VERSION, Record, RecordHead

SomeRecord = TypeVar("SomeRecord", bound=RecordHead)
Document = dict[str, Any]

RUN = "run"
VERSION_BYTES = 64
"""Enough for the first field, which is the version."""

END_BYTES = 16
_END = re.compile(rb"(null|[}\]])\n}\n?\Z")
"""Of a record that ends with a section; braces within it stand behind a space, or behind something else."""

WHOSE = frozenset({"kind", "instance"})
HEAD = frozenset(Record.model_fields) - Record.sections
BEGINNINGS_BYTES = {WHOSE: (1024, 6144), HEAD: (6144, 16_384)}
"""Read of each file for these fields, the second where the first does not do; where neither does, all of it."""


def text_of(record: RecordHead) -> str:
    """The record as it is written; what is not finite in evidence that a mode gives is null."""
    fields = (f'"{name}": {_value(value)}' for name, value in json.loads(record.model_dump_json()).items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _value(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(_line, value)) + "\n]"
    return _line(value)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ": "))


@dataclass(frozen=True)
class Head:
    """What the beginning of a file says, or all of it where that was read. complete: it has all of a run's head."""

    path: Path
    fields: Document
    complete: bool
    kind: str
    instance: str


def head(path: Path, needed: frozenset[str] = HEAD) -> Head | Broken:
    """What kind of record a file is, and of which instance, read from its beginning where that says so. needed: HEAD,
    or WHOSE alone where no more is asked.
    """
    try:
        fields, complete = _beginning(path, needed)
        if not fields.keys() >= WHOSE:
            data = path.read_bytes()
            fields, complete = _document(data) or {}, True
            if not isinstance(fields.get("instance"), str):
                return _refused(data, path)
    except OSError as error:
        return unreadable(path, error)
    return Head(path, fields, complete, str(fields.get("kind", RUN)), str(fields["instance"]))


def light(found: Head) -> Record | Broken:
    """A run without its sections, which stay unread, whatever is wrong with them."""
    try:
        fields = found.fields
        if not found.complete:
            data = found.path.read_bytes()
            document = _document(data)
            if document is None:
                return _refused(data, found.path)
            fields = document
        without = {name: value for name, value in fields.items() if name not in Record.sections}
        return _of_any_version(without, found.path, Record)
    except OSError as error:
        return unreadable(found.path, error)


def whole(path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """All of a record, strictly. model: the class of its kind, which it must be of."""
    try:
        record = _parsed(path.read_bytes(), path, model)
    except OSError as error:
        return unreadable(path, error)
    if isinstance(record, Record) and record.status == "ok" and record.source == "measured" and not record.samples:
        return no_samples(path)
    return record


def _beginning(path: Path, needed: frozenset[str]) -> tuple[Document, bool]:
    """The fields that stand whole at the beginning of a file, and whether they are all of a run's head, in a file that
    was written to its end and has nothing behind its sections.
    """
    fields: Document = {}
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        for length in BEGINNINGS_BYTES[needed]:
            data = os.pread(descriptor, length, 0)
            if size <= length and (document := _document(data)) is not None:
                return document, True
            fields = _begun(data)
            if fields.keys() >= needed or size <= length or fields.get("kind", RUN) != RUN:
                break
        complete = size > length and fields.keys() >= HEAD
        return fields, complete and _END.search(os.pread(descriptor, END_BYTES, size - END_BYTES)) is not None
    finally:
        os.close(descriptor)


def _begun(data: bytes) -> Document:
    """The fields of a document that may be cut off, without the last, in which it may be; none where it is broken."""
    try:
        fields = from_json(data, allow_partial=True)
    except ValueError:
        return {}
    return dict(list(fields.items())[:-1]) if isinstance(fields, dict) else {}


def _parsed(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """A record of any version, from all of its file."""
    if _begun(data[:VERSION_BYTES]).get("schema_version") == SCHEMA_VERSION:
        return _valid(data, path, model)
    fields = _document(data)
    return _valid(data, path, model) if fields is None else _of_any_version(fields, path, model)


def _of_any_version(fields: Document, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    version = fields.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return newer(path, version)
    migrated = migrate(fields)
    try:
        return model.model_validate(migrated)
    except ValidationError:
        # Said once more in the words of JSON.
        return _valid(to_json(migrated), path, model)


def _valid(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """data: JSON of this version, as it lies in the file or made of it."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        return invalid(path, error, path.read_text(encoding="utf-8", errors="replace"))


def _refused(data: bytes, path: Path) -> Broken:
    """Why a file that is no JSON document, or names no instance, is no record."""
    record = _parsed(data, path, Record)
    assert isinstance(record, Broken)
    return record


def _document(data: bytes) -> Document | None:
    try:
        fields = from_json(data)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None
