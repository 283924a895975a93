"""Keeps an instance that the catalogue lacks, or one's own price, in results/<instance>/instance.yaml."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path

from fp8bench.records.files import held, writing
from fp8bench.schema.files import read_text, write_atomically
from fp8bench.schema.instance import INSTANCE_FILE, SNAPSHOT_SUFFIX, SNAPSHOTS, Instance, Price, read_own

WAIT_S = 5.0  # seconds to wait for another process that writes the same file


def files(results_dir: Path) -> list[Path]:
    """Return every such file of the results, after the snapshots of prices kept there, each in their order."""
    return [*snapshots(results_dir), *sorted(results_dir.glob(f"*/{INSTANCE_FILE}"))]


def snapshots(results_dir: Path) -> list[Path]:
    """Return the snapshots, oldest first."""
    # The tenth of a day comes after its second.
    found = (results_dir / SNAPSHOTS).glob(f"*{SNAPSHOT_SUFFIX}")
    return sorted(found, key=lambda path: (path.name[: len("2026-11-22")], len(path.name), path.name))


def keep_snapshot(text: str, day: date, results_dir: Path) -> Path:
    """Write a snapshot of that day beside the existing ones, and return its path. Raises UsageError if it cannot."""
    folder = results_dir / SNAPSHOTS
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = folder / f"{day}{f'.{number}' if number > 1 else ''}{SNAPSHOT_SUFFIX}"
        with writing(path), suppress(FileExistsError):
            write_atomically(path, text, replace=False)
            break
    return path


def keep(
    instance: Instance,
    price: Price | None,
    in_catalog: bool,
    results_dir: Path,
    warn: Callable[[str], None] = lambda _line: None,
) -> Path | None:
    """Keep what the catalogue lacks of an instance, its prices newest first. warn: as of `held`. Raises UsageError."""
    if in_catalog and price is None:
        return None
    # Imported here: whoever only reads which instances exist needs no YAML.
    import yaml

    path = results_dir / instance.key / INSTANCE_FILE
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.with_name(f".{INSTANCE_FILE}.lock"), str(path), "Wait until it ends, and try again", warn, WAIT_S):
        own = read_own(read_text(path), path).prices if path.exists() else ()
        if price is not None:
            # A second price of a day corrects the first.
            own = (price, *(earlier for earlier in own if earlier.same_thing != price.same_thing))
        document = instance.model_copy(update={"prices": own}).model_dump(mode="json", exclude_defaults=True)
        with writing(path):
            write_atomically(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True), replace=True)
    return path
