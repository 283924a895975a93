"""How a record is laid out in its two files, and how they are read. A broken file is returned as such, not raised.

    RUN_ID.json           what tables need: one line a field, in the model's order
    RUN_ID.samples.json   the raw part, written first: the samples of every rank, series of telemetry, kernels

The record has the digest of its raw part, so that neither can be exchanged without the other. Records of other kinds
than a run have no raw part.

Up to format 9 a record had its raw part in its own file. Records of older formats are read as if they were of this one;
their files stay as they are.

From 1 to 2: telemetry was the GPU's state at two moments, of which only the power limit still has a place; the modes
with a recipe were those in fp8. From then on only the number changes: the defaults of the models say what was so before
a field existed, or that it was not recorded.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from fp8bench.records.contradictions import contradictions, of_step_times
from fp8bench.records.files import Broken, invalid, samples_path, unreadable
from fp8bench.schema.files import Frozen, bytes_of
from fp8bench.schema.record import SCHEMA_VERSION, Record, RecordHead, Samples
from fp8bench.stats.steps import step_times

SomeRecord = TypeVar("SomeRecord", bound=RecordHead)
Document = dict[str, Any]

RUN = "run"
AHEAD = timedelta(days=1)
"""How far clocks may differ."""

BEGINNING_BYTES = 1024
"""Enough for a record's version, kind and instance, which are among its first fields."""


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
    return _text(_bare(record, text and sha256(text.encode()).hexdigest())), text


def _text(model: Frozen) -> str:
    """Return a model with a line for each field, and object of an array; a number that is not finite is null."""
    line = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ": ")).encode
    fields = []
    for name, value in json.loads(model.model_dump_json()).items():
        objects = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n" + ",\n".join(map(line, value)) + "\n]" if objects else line(value)
        fields.append(f'"{name}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _bare(record: Record, digest: str | None = None) -> Record:
    none = Samples.model_construct(samples=(), series=(None,) * len(record.telemetry), kernels=())
    return _with_raw(record, none, step_times=step_times(record), samples_sha256=digest)


def _with_raw(record: Record, raw: Samples, **own: Any) -> Record:
    """Return the record with another raw part. Raises ValueError for one of another number of ranks."""
    telemetry = zip(record.telemetry, raw.series, strict=True)
    update = {
        "telemetry": tuple(one.model_copy(update={"series": series}) for one, series in telemetry),
        "profile": record.profile and record.profile.model_copy(update={"kernels": raw.kernels}),
        "samples": raw.samples,
    }
    return record.model_copy(update={**update, **own})


@dataclass(frozen=True)
class Seen:
    """A record's file. kind, instance: from the beginning of its text, if they are there."""

    path: Path
    text: bytes
    kind: str
    instance: str


def see(path: Path) -> Seen | Broken:
    """Return a record's file, of which only the kind and the instance are looked at."""
    try:
        text = bytes_of(path)
    except OSError as error:
        return unreadable(path, error)
    fields = {"kind": RUN, **_beginning(text, "kind", "instance")}
    kind, instance = fields["kind"], fields.get("instance")
    if isinstance(kind, str) and isinstance(instance, str):
        return Seen(path, text, kind, instance)
    record = _parsed(text, path, Record)
    assert isinstance(record, Broken)
    return record


def read(seen: Seen, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return a record, read strictly, without its raw part, which is not looked at. model: the class of its kind."""
    record = _parsed(seen.text, seen.path, model)
    return cast("SomeRecord", _bare(record)) if isinstance(record, Record) and _has_raw(record) else record


def whole(path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    """Return all of a record, read strictly. A run that contradicts itself or its raw part is broken."""
    try:
        record = _parsed(bytes_of(path), path, model)
    except OSError as error:
        return unreadable(path, error)
    return cast("SomeRecord | Broken", _with_samples(record, path)) if isinstance(record, Record) else record


def _with_samples(record: Record, path: Path) -> Record | Broken:
    found: list[str] = []
    if record.samples_sha256 is not None:
        try:
            beside = samples_path(path, record.run_id)
            data = bytes_of(beside)
            if sha256(data).hexdigest() != record.samples_sha256:
                return _without_samples(path, f"{beside.name} is not the file that was written with it")
            raw, stored = Samples.model_validate_json(data), record.step_times
            if raw.run_id != record.run_id:
                raise ValueError("of another record")
            record = _with_raw(record, raw, step_times=None, samples_sha256=None)
        except OSError as error:
            return _without_samples(path, f"{beside.name}: {error.strerror}")
        except ValidationError as error:
            return invalid(beside, error, data.decode("utf-8", "replace"))
        except ValueError:
            return _without_samples(path, "the file that it names is of another record")
        found += of_step_times(stored, step_times(record))
    found += contradictions(record)
    if not found:
        return record
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Broken(path, f"contradicts itself: {found[0]}{more}", "Measure again, or move the file away", readable=True)


def _without_samples(path: Path, why: str) -> Broken:
    return Broken(path, f"lacks its samples: {why}", "Restore that file, or move the record away", readable=True)


def _has_raw(record: Record) -> bool:
    kernels = record.profile.kernels if record.profile else ()
    return bool(record.samples or kernels or any(one.series for one in record.telemetry))


def _beginning(data: bytes, *names: str) -> Document:
    """Return the first fields of a document, or all of them if these names are not among the first."""
    # What was cut off within a field may have another value.
    fields = dict(list(_document(data[:BEGINNING_BYTES], allow_partial=True).items())[:-1])
    return fields if fields.keys() >= {*names} else _document(data)


def _document(data: bytes, allow_partial: bool = False) -> Document:
    """Return the fields of a document; none of one that is broken. allow_partial: whether its end may be missing."""
    try:
        fields = from_json(data, allow_partial=allow_partial)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _parsed(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord | Broken:
    version = _beginning(data, "schema_version").get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        reason = f"has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}"
        return Broken(path, reason, "Upgrade fp8bench, or move the file away")
    # A version of any other type is refused by the model: `True == 1`.
    text = to_json(from_version_1(_document(data))) if type(version) is int and version == 1 else data
    try:
        record = model.model_validate_json(text)
    except ValidationError as error:
        return invalid(path, error, data.decode("utf-8", "replace"))
    older = record.schema_version < SCHEMA_VERSION
    if isinstance(record, Record):
        measured = record.status == "ok" and record.source == "measured"
        beside = record.samples_sha256 is not None and record.step_times is not None
        if (not older and _has_raw(record)) or (measured and not record.samples and not beside):
            reason = "field samples: a measured record with status ok has samples, and they lie beside it"
            return Broken(path, reason, "Fix that field, or move the file away", 1)
    created, now = record.created_utc, datetime.now(UTC)
    if created - now > AHEAD:
        # It would hide all others as the latest one forever.
        reason = f"field created_utc: {created:%Y-%m-%d} is later than today, {now:%Y-%m-%d}, by this machine's clock"
        return Broken(path, reason, "Correct the clock, or move the file away")
    return record.model_copy(update={"schema_version": SCHEMA_VERSION}) if older else record


def from_version_1(document: Document) -> Document:
    """Return a document as version 2 would have it. What version 1 did not write stays, for the model to refuse."""
    found = {**document, "schema_version": 2}
    if isinstance(document.get("telemetry"), list):
        found["telemetry"] = list(map(_telemetry_2, document["telemetry"]))
    if isinstance(document.get("evidence"), dict):
        found["evidence"] = {**document["evidence"], "fp8": document["evidence"].get("recipe") is not None}
    return found


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
