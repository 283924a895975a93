"""What is said of files that lie among records and cannot be read: one line each, on standard error."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fp8bench.cli.progress import log

if TYPE_CHECKING:
    from fp8bench.records.broken import Broken


def tell_broken(broken: "Iterable[Broken]") -> None:
    """Each by its file, line and reason."""
    for one in broken:
        log(f"warning: not read: {one}")
