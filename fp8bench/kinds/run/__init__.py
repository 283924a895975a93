"""Training steps of whole models, and what they cost. `config.request` has what is asked, `launch` how it is measured,
`schema.record` the record; a session makes many of them, so the command is its own (`cli.run`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.kinds.run import compare, document
from fp8bench.kinds.run.row import Comparison
from fp8bench.records import results
from fp8bench.report.document import Document
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Gathered:
    """A comparison, and the rounds that its rows are made of: whole, by their ids."""

    comparison: Comparison
    rounds: dict[str, Record]


def gather(options: CompareOptions, catalog: Catalog, results_dir: Path, unread: Unread) -> Gathered:
    """What tables and the page show. Raises UsageError where an instance has no record, and as `compare` does."""

    def gathered(records: list[Record], whole: Callable[[Record], Record]) -> Gathered:
        for key in options.instances:
            if not any(record.instance == key for record in records):
                remedy = f"Run `fp8bench run --instance {key}` there, or add a figure with `fp8bench import`"
                raise results.nothing_found(f"for instance {key!r}", results_dir, remedy)
        found = compare.compare(records, catalog, options, whole)
        wanted = {run_id for row in found.rows for run_id in row.run_ids}
        return Gathered(found, {record.run_id: whole(record) for record in records if record.run_id in wanted})

    return results.read_on_demand(results.read(results_dir, options.instances), unread, gathered)


class Run(Kind):
    """Runs, with prices."""

    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dir: Path, _log: Log, unread: Unread
    ) -> Document:
        """Rows ranked by what a dollar buys. Raises UsageError where an instance has no record."""

        return document.document(gather(options, catalog, results_dir, unread).comparison)


KIND = Run(
    name="run",
    record=Record,
    example=(
        *("--mode", "baseline-bf16", "--gpus", "1", "--batch-size", "2"),
        *("--rounds", "1", "--steps", "3", "--min-time", "0.01"),
    ),
    compare_options=frozenset(
        (
            *("reference", "price_as_of", "region", "purchase", "allow_mismatch"),
            *("optimizer", "workload", "batch_size"),
        )
    ),
)
