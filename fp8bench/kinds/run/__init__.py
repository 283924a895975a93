"""Training steps of complete models, and what they cost. `config.request` has the options, `launch` measures, and
`schema.record` has the record. A session makes many records, so the command is separate (`cli.run`).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.kinds.run import compare, shown
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.borrowed import borrow, run_there, would_measure
from fp8bench.kinds.run.columns import arranged, grouped, require_columns
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.results import Folders, Found, Kept
from fp8bench.records.select import rounds_of, select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.schema.throughput import ThroughputRecord
from fp8bench.tables.document import Document


def gather(
    kept: Found[Kept[Record]], options: CompareOptions, catalog: Catalog, results_dir: Folders, unread: Unread
) -> Comparison:
    """Return the rows to show of the records in `results_dir`, without those that cannot be believed. kept: what the
    search found, of which some may be broken. A warning says what would measure an instance without a row. Raises
    UsageError if none has a row, and as `compare` does.
    """
    records = results.sound(kept, unread, lambda left: rounds_of(left, options.every, options.wanted))
    borrowed, elsewhere = borrow(records, options, catalog, results_dir, unread)
    there = {one.instance for one in (*filter(options.wanted.takes, records), *(one.latest for one in borrowed))}
    broken = results.instances_of(kept) - {record.instance for record in records}
    without = [key for key in options.instances if key not in there and key not in broken]
    if there.isdisjoint(options.instances):
        raise _nothing(options, without, {record.instance for record in records}, results_dir)
    said = [would_measure(key, elsewhere, options, catalog) for key in without]
    if (gpus := options.view.gpus) and options.ahead is not None:
        of_one_node = [*select(records, options.every, options.wanted), *borrowed]
        ahead, omitted = options.ahead(of_one_node, gpus, catalog)
        said += omitted
        records = [one for one in records if one.what.world_size in gpus]
        borrowed = [one for one in (*borrowed, *ahead) if one.latest.what.world_size in gpus]
        there &= {one.instance for one in (*records, *(one.latest for one in borrowed))}
        if not there:
            raise UsageError(f"no row has {' or '.join(map(str, gpus))} GPUs", "; ".join(said) or "Omit --gpus")
    left = tuple(key for key in options.instances if key in there)
    first = options.reference if options.reference.asked_for else replace(options.reference, instance=left[0])
    options = options._replace(instances=left, reference=first)
    every = compare.compare(records, catalog, options, borrowed)
    said += _published(left, {row.workload for row in every.rows})
    return arranged(every.model_copy(update={"warnings": (*said, *every.warnings)}), options)


def _published(instances: Collection[str], workloads: Collection[str | None]) -> list[str]:
    # Throughput has no step times, which a row needs.
    figures = results.read_kind((), instances, ThroughputRecord)
    there = dict.fromkeys((one.instance, one.workload) for one in figures if one.workload in workloads)
    return [
        f"throughput of {workload} on {instance} was published: `fp8bench scaling {instance} --workload {workload}`"
        for instance, workload in there
    ]


def _nothing(
    options: CompareOptions, without: Sequence[str], measured: Collection[str], results_dir: Folders
) -> UsageError:
    if not without:
        return UsageError(
            f"no record of {', '.join(options.instances)} can be read; the warnings name the files",
            "Restore them, or measure again with `fp8bench run`",
        )
    key, wanted = without[0], options.wanted
    remedy = f"Run `{run_there(key, options)}` there, or add a figure with `fp8bench results import`"
    if key not in measured:
        return results.nothing_found(f"for instance {key!r}", results_dir, remedy, RUN)
    remedy = "; ".join((remedy, *_published([key], {wanted.workload})))
    return UsageError(f"no record{wanted.words} for instance {key!r}", remedy)


class Run(Kind):
    """The kind `run`, which is compared with prices."""

    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dirs: Sequence[Path], _log: Log, unread: Unread
    ) -> Document:
        """Return rows ranked by what a dollar buys, without instances of which no record can be read. Raises UsageError
        if an instance has no record.
        """
        require_columns(options.view)
        every = gather(results.read(results_dirs, options.instances), options, catalog, results_dirs, unread)
        column = options.view.group_by
        return shown.document(*([every] if column is None else grouped(every, column)), view=options.view)


KIND = Run(name="run", record=Record)
