"""Write and read records.

    results/<instance>/<run_id>.json      measured here, or external
    results/<instance>/instance.yaml      what is known of an instance that the catalogue lacks (see instances.py)
    results/published/<run_id>.json       figures from articles; those that travel with fp8bench are read too

A record is written under a temporary name in its folder, flushed, synced and renamed, so that a reader never sees
half of one. It is read back strictly: a field too many is an error, and so is a schema newer than this program.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import wrong_field
from fp8bench.schema.packaged import PUBLISHED_RESULTS
from fp8bench.schema.record import SCHEMA_VERSION, Record

PUBLISHED = "published"


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


def write(record: Record, results_dir: Path) -> Path:
    """Keep the record; returns its path.

    Raises RunFailed where it cannot be written (it is then kept in the folder for temporary files), or is there
    already.
    """
    folder = results_dir / (PUBLISHED if record.source == "published" else record.instance)
    path = folder / f"{record.run_id}.json"
    text = record.model_dump_json(indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise FileExistsError(17, "a record of that name is there already", str(path))
        write_atomically(path, text)
    except OSError as error:
        kept = Path(tempfile.gettempdir()) / f"fp8bench-{record.run_id}.json"
        kept.write_text(text, encoding="utf-8")
        raise RunFailed(
            f"cannot write {path}: {error.strerror}", f"The record is kept as {kept}: move it there by hand"
        ) from error
    return path


def write_atomically(path: Path, text: str) -> None:
    """All of it or nothing, also after a power cut. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def known_instances(results_dir: Path) -> set[str]:
    """Instances that have a folder of results."""
    if not results_dir.is_dir():
        return set()
    return {folder.name for folder in results_dir.iterdir() if folder.is_dir() and folder.name != PUBLISHED}


def read(results_dir: Path, instances: Iterable[str]) -> list[Record]:
    """Every record of these instances, the published ones that travel with fp8bench among them, oldest first.

    Raises UsageError for a file that is broken, by its line and field.
    """
    wanted = set(instances)
    folders = [*(results_dir / name for name in sorted(wanted)), results_dir / PUBLISHED, PUBLISHED_RESULTS]
    paths = {path.resolve(): path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.json"))}
    records = {record.run_id: record for record in map(read_record, paths.values()) if record.instance in wanted}
    return sorted(records.values(), key=lambda record: record.created_utc)


def read_record(path: Path) -> Record:
    """One record, strictly. Raises UsageError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check its permissions") from error
    try:
        record = Record.model_validate_json(data)
    except ValidationError as error:
        _refuse_newer(_schema_version(data), path)
        raise wrong_field(error, path, data.decode("utf-8", "replace")) from error
    _refuse_newer(record.schema_version, path)
    return record


def _refuse_newer(version: object, path: Path) -> None:
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version}, and this fp8bench reads up to {SCHEMA_VERSION}",
            "Upgrade fp8bench, or move the file away",
        )


def _schema_version(data: bytes) -> object:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document.get("schema_version") if isinstance(document, dict) else None
