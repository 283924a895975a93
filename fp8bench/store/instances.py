"""What is known of an instance that the catalogue lacks, or of one's own price for it:
results/<instance>/instance.yaml.

It lies beside the records, so that they can be priced later and elsewhere. Records themselves know nothing of prices.
"""

from pathlib import Path

import yaml

from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Instance, Price
from fp8bench.store.results import write_atomically

FILE_NAME = "instance.yaml"


def files(results_dir: Path) -> list[Path]:
    """Every such file under the results."""
    return sorted(results_dir.glob(f"*/{FILE_NAME}"))


def keep(instance: Instance, price: Price | None, known: Instance | None, results_dir: Path) -> Path | None:
    """Write down an instance that is not in the catalogue, and the price that the user gave, newest first.

    known: the same instance as read so far (catalogue and earlier files), or None. Returns the path, or None where
    there is nothing to add. Raises UsageError where it cannot be written.
    """
    if known is not None and price is None:
        return None
    prices = tuple(known.prices if known else ())
    if price is not None and price not in prices:
        prices = (price, *prices)
    path = results_dir / instance.key / FILE_NAME
    document = instance.model_copy(update={"prices": prices}).model_dump(mode="json", exclude_defaults=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another --results-dir") from error
    return path
