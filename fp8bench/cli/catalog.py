"""The catalogue as every command sees it: with what lies beside the results laid over it."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8bench.schema.instance import Catalog


def load_catalog(results_dir: Path) -> "Catalog":
    """Raises UsageError for a file beside the results that is broken."""
    from fp8bench.pricing.catalog import load
    from fp8bench.store import instances

    return load(instances.files(results_dir))
