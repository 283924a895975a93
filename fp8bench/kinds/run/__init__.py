"""Training steps of complete models, and what they cost. `config.request` has the options, `launch` measures, and
`schema.record` has the record. A session makes many records, so the command is separate (`cli.run`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.kinds.run import compare, document
from fp8bench.kinds.run.arranged import arranged, require_columns
from fp8bench.kinds.run.columns import NAMES
from fp8bench.kinds.run.row import Comparison
from fp8bench.kinds.run.views import Whole, views
from fp8bench.records import results
from fp8bench.records.results import Folders, Found, Kept
from fp8bench.report.document import Document
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record


class Gathered(NamedTuple):
    """A comparison, and the complete rounds of its rows, by their ids."""

    comparison: Comparison
    rounds: dict[str, Record]


def gather(
    kept: Found[Kept[Record]], options: CompareOptions, catalog: Catalog, results_dir: Folders, unread: Unread
) -> Gathered:
    """Return what one table and the page show of the records in `results_dir`. Raises UsageError if an instance has no
    record, and as `compare` does.
    """

    def gathered(records: list[Record], whole: Whole) -> Gathered:
        _require_each(records, options, results_dir)
        found = arranged(compare.compare(records, catalog, options, whole), options)
        wanted = {run_id for row in found.rows for run_id in row.run_ids}
        return Gathered(found, {record.run_id: whole(record) for record in records if record.run_id in wanted})

    return results.read_on_demand(kept, unread, gathered)


def _require_each(records: Sequence[Record], options: CompareOptions, results_dir: Folders) -> None:
    for key in options.instances:
        if not any(record.instance == key for record in records):
            remedy = f"Run `fp8bench run --instance {key}` there, or add a figure with `fp8bench import`"
            raise results.nothing_found(f"for instance {key!r}", results_dir, remedy)


class Run(Kind):
    """The kind `run`, which is compared with prices."""

    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dirs: Sequence[Path], _log: Log, unread: Unread
    ) -> Document:
        """Return rows ranked by what a dollar buys. Raises UsageError if an instance has no record."""
        require_columns(options.view, options.job)

        def compared(records: list[Record], whole: Whole) -> list[Comparison]:
            _require_each(records, options, results_dirs)
            return views(records, catalog, options, whole)

        found = results.read(results_dirs, options.instances)
        return document.document(*results.read_on_demand(found, unread, compared), view=options.view)


KIND = Run(
    name="run",
    record=Record,
    example=(
        *("--mode", "baseline-bf16", "--gpus", "1", "--batch-size", "2"),
        *("--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0.01"),
    ),
    compare_options=frozenset(
        (
            *("reference", "price_as_of", "region", "purchase", "allow_mismatch", "price", "job"),
            *("optimizer", "workload", "batch_size"),
            *("columns", "wide", "sort", "filter", "group_by", "best_batch"),
        )
    ),
    columns=NAMES,
)
