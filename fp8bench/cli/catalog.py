"""The catalogue as every command sees it: with what lies beside the results laid over it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fp8bench.cli.progress import log

if TYPE_CHECKING:
    from fp8bench.schema.instance import Catalog


def load_catalog(results_dir: Path) -> "Catalog":
    """With the files that could be read; see `require_read` for the others."""
    from fp8bench.pricing.catalog import load_beside
    from fp8bench.records import instances

    return load_beside(instances.files(results_dir))


def require_read(catalog: "Catalog", keys: Iterable[str]) -> None:
    """Raises UsageError for a refused file of one of these instances; another's is named on standard error."""
    from fp8bench.pricing import catalog as catalogs

    catalogs.require_read(catalog, keys)
    for unread in catalog.unread:
        log(f"warning: not read: {unread.what}")
