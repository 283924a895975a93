"""What is known of an instance that the catalogue lacks, or of one's own price for it:
results/<instance>/instance.yaml.

It lies beside the records, so that they can be priced later and elsewhere. Records themselves know nothing of prices.
"""

from collections.abc import Callable
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from fp8bench.records.lock import held
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import read_text, write_atomically, wrong_field
from fp8bench.schema.instance import INSTANCE_FILE, SNAPSHOT_SUFFIX, SNAPSHOTS, Instance, Price, name_of, order_of

WAIT_S = 5.0
"""For another process to write the same file."""


def files(results_dir: Path) -> list[Path]:
    """Every such file under the results, and before them, in their order, the snapshots of prices that lie there."""
    return [*snapshots(results_dir), *sorted(results_dir.glob(f"*/{INSTANCE_FILE}"))]


def snapshots(results_dir: Path) -> list[Path]:
    """Oldest first."""
    return sorted((results_dir / SNAPSHOTS).glob(f"*{SNAPSHOT_SUFFIX}"), key=order_of)


def keep_snapshot(text: str, day: date, results_dir: Path) -> Path:
    """Write a snapshot of that day beside those that there are, over none of them; returns its path. Raises UsageError
    where it cannot be written.
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
    """Write down an instance that is not in the catalogue, and the price that the user gave, newest first.

    The file holds the user's own prices only; the catalogue's are joined when it is read. warn: called where it cannot
    be locked. Returns its path, or None where there is nothing to write down. Raises UsageError where it cannot be read
    or written, or another process holds it for longer than WAIT_S.
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
    # Imported here, as below: who only reads what instances there are does without YAML.
    import yaml

    own = _own_prices(path)
    if price is not None:
        own = (price, *(earlier for earlier in own if earlier != price))
    document = instance.model_copy(update={"prices": own}).model_dump(mode="json", exclude_defaults=True)
    try:
        write_atomically(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True), replace=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another --results-dir") from error
    return path


def _own_prices(path: Path) -> tuple[Price, ...]:
    if not path.exists():
        return ()
    from fp8bench.schema.yaml_text import parse_yaml

    text = read_text(path)
    try:
        return Instance.model_validate(parse_yaml(text, path)).prices
    except ValidationError as error:
        raise wrong_field(error, path, text) from error
