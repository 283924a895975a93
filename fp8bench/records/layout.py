"""How a record is laid out in its two files, and how they are found and read. A broken file is returned as such, not
raised.

    RUN_ID.json           what tables need, and the digest of the other file: one line a field, in the model's order
    RUN_ID.samples.json   the raw part of a run, written first: samples of every rank, series of telemetry, kernels

Records of older formats, which up to 9 had the raw part in their own file, are read as if they were of this one. Only
format 1 had other fields: telemetry at two moments, and no word for fp8. From then on the defaults of the models say
what was so before a field existed.
"""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from fp8bench.records.contradictions import contradictions, of_step_times
from fp8bench.records.files import Broken, is_record, samples_path, unreadable
from fp8bench.schema.files import Frozen, bytes_of, fault
from fp8bench.schema.record import SCHEMA_VERSION, Record, RecordHead, Samples
from fp8bench.stats.steps import step_times

SomeRecord = TypeVar("SomeRecord", bound=RecordHead)
Document = dict[str, Any]

RUN = "run"
AHEAD = timedelta(days=1)  # how far clocks may differ
BEGINNING_BYTES = 1024  # enough for a record's version, kind and instance, which are among its first fields

FIX = "Fix that field, or move the file away"


def texts_of(record: RecordHead) -> tuple[str, str | None]:
    """Return the texts of a whole record's file and of the file with its raw part; None if it has none."""
    if not isinstance(record, Record):
        return _text(record), None
    raw = Samples(
        schema_version=SCHEMA_VERSION,
        run_id=record.run_id,
        samples=record.samples,
        series=tuple(one.series for one in record.telemetry),
        kernels=record.profile.kernels if record.profile else (),
    )
    text = _text(raw) if _has_raw(record) else None
    return _text(_with_raw(record, None, text and sha256(text.encode()).hexdigest())), text


def _text(model: Frozen) -> str:
    """Return a model with a line for each field, and object of an array; a number that is not finite is null."""
    line = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ": ")).encode
    fields = []
    for name, value in json.loads(model.model_dump_json()).items():
        objects = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n" + ",\n".join(map(line, value)) + "\n]" if objects else line(value)
        fields.append(f'"{name}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _with_raw(record: Record, raw: Samples | None, digest: str | None = None) -> Record:
    """Return the record with this raw part; or without any, but with its step times and the raw part's digest."""
    series = raw.series if raw else (None,) * len(record.telemetry)
    telemetry = zip(record.telemetry, series, strict=True)
    update = {
        "telemetry": tuple(one.model_copy(update={"series": of_one}) for one, of_one in telemetry),
        "profile": record.profile and record.profile.model_copy(update={"kernels": raw.kernels if raw else ()}),
        "samples": raw.samples if raw else (),
        "step_times": None if raw else step_times(record),
        "samples_sha256": digest,
    }
    return record.model_copy(update=update)


class Seen(NamedTuple):
    """What a record's file says of itself."""

    path: Path
    kind: str
    instance: str


class Survey(NamedTuple):
    """What lies below folders of results. instances: that the records of a folder name."""

    seen: list[Seen]
    broken: list[Broken]
    instances: dict[Path, set[str]]

    def astray(self, one: Seen) -> Broken | None:
        """Return the fault of a record in the folder of another instance, which others there name."""
        folder = one.path.parent.name or one.path.absolute().parent.name
        if folder == one.instance or folder not in self.instances[one.path.parent]:
            return None
        reason = f"contradicts its folder: its instance is {one.instance}, and the folder is that of {folder}"
        return Broken(one.path, reason, f"Move it to the folder {one.instance}, or away", readable=True)


def survey(*roots: Path) -> Survey:
    """Look at all records below the roots, by folder and name. Links are followed; a root may be missing."""
    found, walked = Survey([], [], {}), set[str]()

    def closed(error: OSError) -> None:
        found.broken.append(unreadable(Path(error.filename), error))

    for root in filter(Path.is_dir, roots):
        for folder, inner, names in os.walk(root, onerror=closed, followlinks=True):
            first = (real := os.path.realpath(folder)) not in walked
            walked.add(real)
            inner[:] = sorted(name for name in inner if first and not name.startswith("."))
            each = [see(Path(folder, name)) for name in sorted(filter(is_record, names if first else ()))]
            found.broken.extend(one for one in each if isinstance(one, Broken))
            found.seen.extend(seen := [one for one in each if isinstance(one, Seen)])
            if seen:
                found.instances[Path(folder)] = {one.instance for one in seen}
    return found


def see(path: Path) -> Seen | Broken:
    try:
        fields = _beginning(data := bytes_of(path), "kind", "instance")
    except OSError as error:
        return unreadable(path, error)
    kind, instance = fields.get("kind", RUN), fields.get("instance")
    if isinstance(kind, str) and isinstance(instance, str):
        return Seen(path, kind, instance)
    record = _parsed(path, Record, data)
    assert isinstance(record, Broken)
    return record


def read(path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return a record, read strictly, without its raw part, which is not looked at. model: the class of its kind."""
    record = _parsed(path, model)
    return cast("SomeRecord", _with_raw(record, None)) if isinstance(record, Record) and _has_raw(record) else record


def whole(path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return all of a record, read strictly. A run that contradicts itself or its raw part is broken."""
    kept = _parsed(path, model)
    if not isinstance(kept, Record):
        return kept
    record: Record = kept
    found: list[str] = []
    if record.samples_sha256 is not None:
        beside = path
        try:
            beside = samples_path(path, record.run_id)
            data = bytes_of(beside)
            if sha256(data).hexdigest() != record.samples_sha256:
                raise ValueError(f"{beside.name} is not the file that was written with it")
            raw, stored = Samples.model_validate_json(data), record.step_times
            if raw.run_id != record.run_id or len(raw.series) != len(record.telemetry):
                raise ValueError("the file that it names is of another record")
            record = _with_raw(record, raw)
        except (OSError, ValueError) as error:
            if isinstance(error, ValidationError):
                return Broken(beside, fault(error, data), FIX)
            why = f"{beside.name}: {error.strerror}" if isinstance(error, OSError) else error
            reason = f"lacks its samples: {why}"
            return Broken(path, reason, "Restore that file, or move the record away", readable=True)
        found += of_step_times(stored, step_times(record))
    found += contradictions(record)
    if not found:
        return cast("SomeRecord", record)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Broken(path, f"contradicts itself: {found[0]}{more}", "Measure again, or move the file away", readable=True)


def _has_raw(record: Record) -> bool:
    kernels = record.profile.kernels if record.profile else ()
    return bool(record.samples or kernels or any(one.series for one in record.telemetry))


def _beginning(data: bytes, *names: str) -> Document:
    """Return the first fields of a document, or all of them if these names are not among the first."""
    # What was cut off within a field may have another value.
    fields = dict(list(_document(data[:BEGINNING_BYTES], allow_partial=True).items())[:-1])
    return fields if fields.keys() >= {*names} else _document(data)


def _document(data: bytes, allow_partial: bool = False) -> Document:
    try:
        fields = from_json(data, allow_partial=allow_partial)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _parsed(path: Path, model: type[SomeRecord], data: bytes | None = None) -> SomeRecord | Broken:
    try:
        data = bytes_of(path) if data is None else data
    except OSError as error:
        return unreadable(path, error)
    version = _beginning(data, "schema_version").get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        reason = f"has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}"
        return Broken(path, reason, "Upgrade fp8bench, or move the file away")
    # A version of any other type is refused by the model: `True == 1`.
    text = to_json(from_version_1(_document(data))) if type(version) is int and version == 1 else data
    try:
        record = model.model_validate_json(text)
    except ValidationError as error:
        return Broken(path, fault(error, data), FIX)
    older = record.schema_version < SCHEMA_VERSION
    if isinstance(record, Record):
        measured = record.status == "ok" and record.source == "measured"
        beside = record.samples_sha256 is not None and record.step_times is not None
        if (not older and _has_raw(record)) or (measured and not record.samples and not beside):
            reason = "line 1, field samples: a measured record with status ok has samples, and they lie beside it"
            return Broken(path, reason, FIX)
    created, now = record.created_utc, datetime.now(UTC)
    if created - now > AHEAD:
        # It would hide all others as the latest one forever.
        reason = f"field created_utc: {created:%Y-%m-%d} is later than today, {now:%Y-%m-%d}, by this machine's clock"
        return Broken(path, reason, "Correct the clock, or move the file away")
    return record.model_copy(update=_shared(record) | {"schema_version": SCHEMA_VERSION})


_PARTS: WeakValueDictionary[bytes, BaseModel] = WeakValueDictionary()


def _shared(record: RecordHead) -> dict[str, Any]:
    """Return the parts of a record, each as the one object that equal parts of all records share: of ten thousand
    records, most have the same configuration, environment and evidence.
    """
    shared: dict[str, Any] = {}
    for name, part in record:
        if isinstance(part, BaseModel):
            key = type(part).__name__.encode() + blake2b(part.__pydantic_serializer__.to_json(part)).digest()
            shared[name] = _PARTS.setdefault(key, part)
    return shared


def from_version_1(document: Document) -> Document:
    """Return a document as version 2 would have it. What version 1 did not write stays, for the model to refuse."""
    found = {**document, "schema_version": 2}
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        found["evidence"] = {**document["evidence"], "fp8": document["evidence"].get("recipe") is not None}
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        found["telemetry"] = [_telemetry_2(**one) for one in document["telemetry"]]
    return found


def _telemetry_2(before: Any = None, after: Any = None, **kept: Any) -> Document:
    moments = dict(after or {}), dict(before or {})
    state = moments[0] or moments[1]
    warning = "recorded at two moments only, by an older fp8bench" if state else None
    return {**kept, "power_limit_w": state.get("power_limit_w"), "warning": warning}
