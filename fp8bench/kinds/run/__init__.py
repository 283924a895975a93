"""Training steps of complete models, and what they cost. `config.request` has the options, `launch` measures, and
`schema.record` has the record. A session makes many records, so the command is separate (`cli.run`).

Where nothing was measured, rows are from the same GPUs elsewhere, else predicted; else it is told what measures there.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.kinds.run import compare, shown
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.columns import arranged, in_groups, require_columns
from fp8bench.pricing.choose import choose
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.results import Folders, Found, Kept
from fp8bench.records.select import Key, Measurement, grouped, rounds_of, select, variant
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record, ThroughputRecord
from fp8bench.stats.certainty import BETWEEN_MACHINES
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
    measured = {record.instance for record in records}
    broken = results.instances_of(kept) - measured
    without = [key for key in options.instances if key not in there and key not in broken]
    if there.isdisjoint(options.instances):
        raise _nothing(options, without, measured, results_dir)
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
    return arranged(replace(every, warnings=(*said, *every.warnings)), options)


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
        what = f"no record of {', '.join(options.instances)} can be read; the warnings name the files"
        return UsageError(what, "Restore them, or measure again with `fp8bench run`")
    key, wanted = without[0], options.wanted
    run = f"Run `fp8bench run --instance {key}{wanted.flags}` there"
    remedy = f"{run}, or add a figure with `fp8bench results import`"
    if key not in measured:
        return results.nothing_found(f"for instance {key!r}", results_dir, remedy, RUN)
    remedy = "; ".join((remedy, *_published([key], {wanted.workload})))
    return UsageError(f"no record{wanted.words} for instance {key!r}", remedy)


def would_measure(key: str, elsewhere: Sequence[Measurement], options: CompareOptions, catalog: Catalog) -> str:
    """Say what measures an instance without a row, and what that took where most was measured."""
    said = f"{key}: no record{options.wanted.words}, and none from which one can be predicted with a tested error"
    of_lenders = grouped(elsewhere, lambda one: one.latest.instance)
    lender = max(of_lenders, key=lambda name: len(of_lenders[name]), default="")
    hours = sum(one.took_s for one in of_lenders.get(lender, ())) / 3600
    price = choose(catalog.instances[key].prices, options.query()) if key in catalog.instances else None
    usd = f", {hours * price.usd_per_hour:.2f} USD" if price is not None and price.usd_per_hour else ""
    took = f" ({math.ceil(hours * 60)} min{usd}, as long as on {lender})" if hours else ""
    return f"{said}; `fp8bench run --instance {key}{options.wanted.flags}` there measures it{took}"


def borrow(
    records: Sequence[Record], options: CompareOptions, catalog: Catalog, results_dir: Folders, unread: Unread
) -> tuple[list[Measurement], list[Measurement]]:
    """Return, for instances of which no wanted record was measured, what was measured on others with the same GPUs,
    else what is predicted from all others; and what was measured on any instance of the catalogue, if one was not.
    """
    measured = [one for one in records if one.source == "measured" and one.status == "ok" and options.wanted.takes(one)]
    left = [name for name in dict.fromkeys(options.instances) if name not in {one.instance for one in measured}]
    if not left or not any(folder.exists() for folder in results.folders_of(results_dir)):
        return [], []
    elsewhere = results.measured(results.read(results_dir, catalog.instances), unread, options.wanted)
    known = [name for name in left if name in catalog.instances]
    borrowed = [one for name in known for one in lent(elsewhere, name, catalog)]
    left = [name for name in known if name not in {one.latest.instance for one in borrowed}]
    if options.foresee and elsewhere and left:
        borrowed += options.foresee(elsewhere, left, catalog)
    return borrowed, elsewhere


def lent(selected: Sequence[Measurement], name: str, catalog: Catalog) -> list[Measurement]:
    """Return what the instance with as many of the same GPU and the most variants measured, the latest of each, as that
    of instance `name`, whose machines may be faster or slower by `certainty.BETWEEN_MACHINES`. selected: those `ok`.
    """
    own, those = catalog.instances[name], catalog.with_as_many_gpus(name)
    by_lender: dict[str, dict[Key, Measurement]] = {}
    for one in selected:
        config, lender = one.latest.config, one.latest.instance
        if lender in those and config is not None and (config.nodes, config.world_size) == (1, own.gpu_count):
            by_lender.setdefault(lender, {})[variant(one.latest)] = one
    most = max(by_lender.values(), key=len, default={})
    return [
        Measurement(
            tuple(as_of(name, each) for each in one.rounds),
            measured_on=one.latest.instance,
            origin="same-gpu",
            elsewhere=BETWEEN_MACHINES,
        )
        for one in most.values()
    ]


def as_of(name: str, record: Record) -> Record:
    """Return the record as one of instance `name`, of no known machine: that of the instance may be any."""
    return record.model_copy(update={"instance": name, "run_id": f"{record.run_id}@{name}", "machine": None})


class Run(Kind):
    """The kind `run`, which is compared with prices."""

    def compare(
        self, options: CompareOptions, catalog: Catalog, results_dirs: Sequence[Path], _log: Log, unread: Unread
    ) -> Document:
        """Return rows ranked by what a dollar buys. Raises UsageError if an instance has no record."""
        require_columns(options.view)
        every = gather(results.read(results_dirs, options.instances), options, catalog, results_dirs, unread)
        column = options.view.group_by
        return shown.document(*([every] if column is None else in_groups(every, column)), view=options.view)


KIND = Run(name="run", record=Record)
