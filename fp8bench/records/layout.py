"""How a record is laid out in its file, and how one file is read: completely, or only its head. A broken file is
returned as such, not raised.

A record is one JSON document. `text_of` writes each field on a separate line, and each element of an array of objects
too, with arrays of numbers on one line. Fields are in the model's order: what the record is and of which instance
first, its sections (`Record.sections`: raw samples, telemetry, the profile) last. So a reader that needs the head
parses the beginning of a file, until no field of the head is missing, and leaves the sections unread: a few kilobytes
per record.

Nothing depends on the lines: a record with another layout (up to format 3 each number had a line of its own, and format
2 had the sections in the middle) is read by the same rule, up to its end if its head extends that far.

Records of older formats are read as if they were of this one; their files stay as they are.

From 1 to 2: telemetry was the GPU's state at two moments, of which only the power limit still has a place; the modes
with a recipe were those in fp8; the other new fields were not recorded, and are null.
From 2 to 3: what is new was not recorded, and is null; only the number changes.
From 3 to 4: nothing was replayed, the optimizer was SGD, and causes were not recorded, which the defaults say.
From 4 to 5: every batch size was given.
From 5 to 6: the run chose how ranks are joined, and took DDP, and a step took its samples at once.
From 6 to 7: all modes of a session had the same settings.
From 7 to 8, and from 8 to 9: what is new was not recorded, and is null.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from fp8bench.records.contradictions import contradictions
from fp8bench.records.files import Broken, contradictory, invalid, newer, no_samples, of_the_future, unreadable
from fp8bench.schema.files import bytes_of, open_regular
from fp8bench.schema.record import SCHEMA_VERSION, Record, RecordHead

SomeRecord = TypeVar("SomeRecord", bound=RecordHead)
Document = dict[str, Any]

RUN = "run"
VERSION_BYTES = 64
"""Enough for the first field, which is the version."""

END_BYTES = 16
_END = re.compile(rb"(null|[}\]])\n}\n?\Z")
"""How a record ends whose last field is a section."""

WHOSE = frozenset({"kind", "instance"})
HEAD = frozenset(Record.model_fields) - Record.sections
BEGINNINGS_BYTES = {WHOSE: (1024, 6144), HEAD: (6144, 16_384)}
"""The bytes of a file that are read for these fields: first, then if that was too little; after that all of it."""


def text_of(record: RecordHead) -> str:
    """Return the record as it is written; a number in a mode's evidence that is not finite is null."""
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
    """Fields from the beginning of a file, or from all of it. complete: whether they are all of a run's head."""

    path: Path
    fields: Document
    complete: bool
    kind: str
    instance: str


def head(path: Path, needed: frozenset[str] = HEAD) -> Head | Broken:
    """Return a record's kind and instance, from the beginning of its file if they are there. needed: HEAD, or WHOSE if
    no other field is needed.
    """
    try:
        fields, complete = _beginning(path, needed)
        if not _says_whose(fields):
            data = bytes_of(path)
            fields, complete = {"kind": RUN, **(_document(data) or {})}, True
            if not _says_whose(fields):
                return _why_broken(data, path)
    except OSError as error:
        return unreadable(path, error)
    return Head(path, fields, complete, str(fields.get("kind", RUN)), str(fields["instance"]))


def _says_whose(fields: Document) -> bool:
    return isinstance(fields.get("instance"), str) and isinstance(fields.get("kind"), str)


def light(found: Head) -> Record | Broken:
    """Return a run without its sections, which are neither read nor checked."""
    fields = found.fields
    try:
        if not found.complete:
            data = bytes_of(found.path)
            if (document := _document(data)) is None:
                return _why_broken(data, found.path)
            fields = document
        without = {name: value for name, value in fields.items() if name not in Record.sections}
        return _of_any_version(without, found.path, Record)
    except OSError as error:
        return unreadable(found.path, error)


def whole(path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return all of a record, read strictly. model: the class of its kind. A run that contradicts itself is broken."""
    try:
        record = _parsed(bytes_of(path), path, model)
    except OSError as error:
        return unreadable(path, error)
    if isinstance(record, Record) and record.status == "ok" and record.source == "measured" and not record.samples:
        return no_samples(path)
    if isinstance(record, Record) and (found := contradictions(record)):
        return contradictory(path, found)
    return record


def _beginning(path: Path, needed: frozenset[str]) -> tuple[Document, bool]:
    """Return the fields that are complete at the beginning of a file, and whether they are all of a run's head, in a
    file that was completely written and has nothing after its sections.
    """
    fields: Document = {}
    descriptor = open_regular(path)
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
    """Return the fields of a document that may be cut off, without the last, which may be incomplete; empty if the
    document is broken.
    """
    try:
        fields = from_json(data, allow_partial=True)
    except ValueError:
        return {}
    return dict(list(fields.items())[:-1]) if isinstance(fields, dict) else {}


def _parsed(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return a record of any version, from all of its file."""
    if _begun(data[:VERSION_BYTES]).get("schema_version") == SCHEMA_VERSION:
        return _valid(data, path, model)
    fields = _document(data)
    return _valid(data, path, model) if fields is None else _of_any_version(fields, path, model)


def _of_any_version(fields: Document, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    version = fields.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return newer(path, version)
    # A version of any other type is refused: `True == 1`.
    migrated = migrate(fields) if type(version) is int else fields
    try:
        return _of_today(model.model_validate(migrated), path)
    except ValidationError:
        # Validate again as JSON, for its error messages.
        return _valid(to_json(migrated), path, model)


def _valid(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return the validated record. data: JSON of this version, from the file or migrated."""
    try:
        return _of_today(model.model_validate_json(data), path)
    except ValidationError as error:
        return invalid(path, error, bytes_of(path).decode("utf-8", "replace"))


def _of_today(record: SomeRecord, path: Path) -> SomeRecord | Broken:
    return of_the_future(path, record.created_utc) or record


def _why_broken(data: bytes, path: Path) -> Broken:
    """Return why a file is broken. data: of a file that is not a JSON document, or names no instance."""
    record = _parsed(data, path, Record)
    assert isinstance(record, Broken)
    return record


def _document(data: bytes) -> Document | None:
    try:
        fields = from_json(data)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def migrate(document: Document) -> Document:
    """Return a document of this version. document: a record's JSON of any version up to this one's. What is not as its
    version wrote it is left unchanged, for the reader to refuse.
    """
    if document.get("schema_version") == 1:
        document = {**document, "schema_version": 2}
        if isinstance(document.get("telemetry"), list):
            document["telemetry"] = list(map(_telemetry_2, document["telemetry"]))
        if isinstance(document.get("evidence"), dict):
            document["evidence"] = {**document["evidence"], "fp8": document["evidence"].get("recipe") is not None}
    if document.get("schema_version") in range(2, SCHEMA_VERSION):
        document = {**document, "schema_version": SCHEMA_VERSION}
    return document


def _telemetry_2(telemetry: Any) -> Any:
    if not isinstance(telemetry, dict):
        return telemetry
    moments: list[Any] = [telemetry.get(name) or {} for name in ("after", "before")]
    if not all(isinstance(moment, dict) for moment in moments):
        return telemetry
    state: Document = moments[0] or moments[1]
    warning = "recorded at two moments only, by an older fp8bench" if state else None
    kept = {name: value for name, value in telemetry.items() if name not in ("before", "after")}
    return {**kept, "power_limit_w": state.get("power_limit_w"), "warning": warning}
