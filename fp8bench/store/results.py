"""Write and read records.

    results/<instance>/<run_id>.json      measured here, or external
    results/<instance>/instance.yaml      what is known of an instance that the catalogue lacks (see instances.py)
    results/published/<run_id>.json       figures from articles; those that travel with fp8bench are read too

A record is written under a temporary name in its folder, flushed, synced and renamed, so that a reader never sees
half of one. It is read back strictly: a field too many is an error, and so is a schema newer than this program.
"""

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from pydantic import ValidationError

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import wrong_field
from fp8bench.schema.packaged import PUBLISHED_RESULTS
from fp8bench.schema.record import SCHEMA_VERSION, Record, RecordHead
from fp8bench.store.migrate import is_old, migrate

SomeRecord = TypeVar("SomeRecord", bound=RecordHead)

PUBLISHED = "published"
_HEAD = re.compile(rb'\s*\{\s*"schema_version":\s*%d\s*,\s*"kind":\s*"(\w+)"' % SCHEMA_VERSION)
"""How a record of this version begins, as `write` writes it. A whole record is long, so this is looked for first."""

RUN = "run"
_CLOSES = {b"[": b"\n ]", b"{": b"\n }"}
_HEAVY = {b"samples": b"[]", b"telemetry": b"[]", b"profile": b"null"}
"""Sections that are most of a record, and what stands for them where they are left out."""


def require_writable(results_dir: Path) -> None:
    """Fail before a run rather than after it. Raises UsageError where the folder cannot be made or written to."""
    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results_dir):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write results to {results_dir}: {error.strerror}", "Choose another folder with --results-dir"
        ) from error


def write(record: RecordHead, results_dir: Path) -> Path:
    """Keep the record, of whatever kind; returns its path.

    Raises RunFailed where it cannot be written (it is then kept in the folder for temporary files), or is there
    already.
    """
    folder = results_dir / (PUBLISHED if record.source == "published" else record.instance)
    path = folder / f"{record.run_id}.json"
    text = record.model_dump_json(indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, replace=False)
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror}", _kept_elsewhere(path.name, text)) from error
    return path


def _kept_elsewhere(name: str, text: str) -> str:
    """The last resort for a record that cost an hour: the folder for temporary files. Returns the remedy."""
    try:
        descriptor, kept = tempfile.mkstemp(prefix="fp8bench-", suffix=f"-{name}")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return "Nor could it be kept in the folder for temporary files: make room, and run again"
    return f"The record is kept as {kept}: move it there by hand"


def write_atomically(path: Path, text: str, replace: bool) -> None:
    """All of it or nothing, also after a power cut. Raises OSError, FileExistsError unless `replace` is set."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        if replace:
            os.rename(temporary, path)
        else:
            _rename_to_new(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path.parent)


def _rename_to_new(temporary: str, path: Path) -> None:
    """Rename, but never onto another file: a hard link fails where the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without hard links: look, then rename.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        os.rename(temporary, path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a folder. The record is in its place all the same.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def known_instances(results_dir: Path) -> set[str]:
    """Instances that have a folder of results."""
    if not results_dir.is_dir():
        return set()
    return {folder.name for folder in results_dir.iterdir() if folder.is_dir() and folder.name != PUBLISHED}


class Kept(NamedTuple):
    """A record of a run and the file where it lies."""

    record: Record
    path: Path


def read(results_dir: Path, instances: Iterable[str]) -> list[Kept]:
    """Every run of these instances, the published ones that travel with fp8bench among them, oldest first.

    Raw samples, telemetry and profiles are left out, unread: they are nine tenths of a record, and only those of the
    few records that are shown are wanted (`read_record` reads them, and checks them then). Raises UsageError for a
    file that is broken in what is left, by its line and field.
    """
    wanted = set(instances)
    found: dict[str, Kept] = {}
    for path in _paths(results_dir, wanted):
        data = _bytes(path)
        if _kind(data) == RUN:
            record = _parse(_lighter(data), path, Record)
            if record.instance in wanted:
                found[record.run_id] = Kept(record, path)
    return sorted(found.values(), key=lambda kept: kept.record.created_utc)


def read_kind(
    results_dir: Path, instances: Iterable[str], model: type[SomeRecord], beginning: str = ""
) -> list[SomeRecord]:
    """Every record of one kind that is not a run, whole, oldest first. model: its class. beginning: of the run's id,
    which is the file's name, so that no other file need be read. Raises as `read` does.
    """
    wanted = set(instances)
    kind = model.model_fields["kind"].default
    files = ((path, _bytes(path)) for path in _paths(results_dir, wanted) if path.name.startswith(beginning))
    records = [_parse(data, path, model) for path, data in files if _kind(data) == kind]
    return sorted((record for record in records if record.instance in wanted), key=lambda record: record.created_utc)


def _paths(results_dir: Path, instances: set[str]) -> list[Path]:
    folders = [*(results_dir / name for name in sorted(instances)), results_dir / PUBLISHED, PUBLISHED_RESULTS]
    present = {folder.resolve(): folder for folder in folders if folder.is_dir()}
    names = [(folder, name) for folder in present.values() for name in sorted(os.listdir(folder))]
    return [folder / name for folder, name in names if name.endswith(".json") and not name.startswith(".")]


def _kind(data: bytes) -> str:
    """What a file is a record of; a file that cannot be read is taken for a run, and refused as one."""
    head = _HEAD.match(data)
    if head:
        return head.group(1).decode()
    document = _document(data)
    return str(document.get("kind", RUN)) if document else RUN


@overload
def read_record(path: Path) -> Record: ...


@overload
def read_record(path: Path, model: type[SomeRecord]) -> SomeRecord: ...


def read_record(path: Path, model: type[RecordHead] = Record) -> RecordHead:
    """One record, strictly, of this format or an older one. model: the class of its kind. Raises UsageError, also for a
    record of another kind.
    """
    data = _bytes(path)
    wanted, kind = model.model_fields["kind"].default, _kind(data)
    if kind != wanted and _document(data):
        raise UsageError(f"{path} is a record of kind {kind}, not {wanted}", f"Name one of kind {wanted}")
    return _parse(data, path, model)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check its name and its permissions") from error


def _lighter(data: bytes) -> bytes:
    """The same record without its heavy sections, which keep their lines, so that faults are still told by line.

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
        data = b"".join((data[:start], nothing, b"\n" * data.count(b"\n", start, end), data[end:]))
    return data


def _parse(data: bytes, path: Path, model: type[SomeRecord]) -> SomeRecord:
    try:
        return model.model_validate_json(_of_this_version(data, path))
    except ValidationError as error:
        raise wrong_field(error, path, data.decode("utf-8", "replace")) from error


def _of_this_version(data: bytes, path: Path) -> bytes:
    """The same bytes, or an older format's rewritten. Raises UsageError for a newer one."""
    if _HEAD.match(data):
        return data
    document = _document(data)
    version = document.get("schema_version") if document else None
    _refuse_newer(version, path)
    return json.dumps(migrate(document)).encode() if document and is_old(version) else data


def _refuse_newer(version: object, path: Path) -> None:
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}",
            "Upgrade fp8bench, or move the file away",
        )


def _document(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
