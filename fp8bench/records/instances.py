"""Keeps what is known of an instance that the catalogue lacks, or the user's own price for one:
results/<instance>/instance.yaml.

The file lies next to the records, so that they can be priced later and elsewhere. Records themselves contain no prices.
"""

from collections.abc import Callable
from datetime import date
from pathlib import Path

from fp8bench.records.lock import held
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import read_text, write_atomically
from fp8bench.schema.instance import (
    INSTANCE_FILE,
    SNAPSHOT_SUFFIX,
    SNAPSHOTS,
    Instance,
    Price,
    name_of,
    order_of,
    read_own,
)

WAIT_S = 5.0
"""Seconds to wait for another process that writes the same file."""


def files(results_dir: Path) -> list[Path]:
    """Return every such file of the results, after the snapshots of prices kept there, each in their order."""
    return [*snapshots(results_dir), *sorted(results_dir.glob(f"*/{INSTANCE_FILE}"))]


def snapshots(results_dir: Path) -> list[Path]:
    """Return the snapshots, oldest first."""
    return sorted((results_dir / SNAPSHOTS).glob(f"*{SNAPSHOT_SUFFIX}"), key=order_of)


def keep_snapshot(text: str, day: date, results_dir: Path) -> Path:
    """Write a snapshot of that day next to the existing ones, without replacing any, and return its path. Raises
    UsageError if it cannot be written.
    """
    folder = results_dir / SNAPSHOTS
    taken: set[str] = set()
    while True:
        path = folder / name_of(day, taken | {one.name for one in snapshots(results_dir)})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text, replace=False)
            return path
        except OSError as error:
            # Another call may have taken the name meanwhile.
            if isinstance(error, FileExistsError) and path.exists() and path.name not in taken:
                taken.add(path.name)
                continue
            raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another --results-dir") from error


def keep(
    instance: Instance,
    price: Price | None,
    in_catalog: bool,
    results_dir: Path,
    warn: Callable[[str], None] = lambda _line: None,
) -> Path | None:
    """Write down an instance that is not in the catalogue, and the price that the user gave, newest first. The file
    contains only the user's own prices; the catalogue's are joined when it is read. warn: called if the file cannot be
    locked. Returns the path, or None if there is nothing to write. Raises UsageError if the file cannot be read or
    written, or another process holds it for longer than WAIT_S.
    """
    if in_catalog and price is None:
        return None
    path = results_dir / instance.key / INSTANCE_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another --results-dir") from error
    with held(path.with_name(f".{INSTANCE_FILE}.lock"), str(path), "Wait until it ends, and try again", warn, WAIT_S):
        return _written(path, instance, price)


def _written(path: Path, instance: Instance, price: Price | None) -> Path:
    # Imported here, as below: whoever only reads which instances exist needs no YAML.
    import yaml

    own = read_own(read_text(path), path).prices if path.exists() else ()
    if price is not None:
        # A second price of a day corrects the first.
        own = (price, *(earlier for earlier in own if earlier.same_thing != price.same_thing))
    document = instance.model_copy(update={"prices": own}).model_dump(mode="json", exclude_defaults=True)
    try:
        write_atomically(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True), replace=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another --results-dir") from error
    return path
