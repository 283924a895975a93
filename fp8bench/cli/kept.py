"""What the command line says of kept records: which could not be read, and what does not go with showing one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fp8bench.cli.progress import log
from fp8bench.schema.errors import UsageError

if TYPE_CHECKING:
    from fp8bench.records.files import Broken


def tell_broken(broken: "Iterable[Broken]") -> None:
    """Each by its file, line and reason, a line on standard error."""
    for one in broken:
        log(f"warning: not read: {one}")


def refuse_beside_record(given: dict[str, object]) -> None:
    """given: options of a measurement, by their flags. Raises UsageError for any that was set."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"--record shows what was kept, and {flag} belongs to a measurement", "Give one of them")
