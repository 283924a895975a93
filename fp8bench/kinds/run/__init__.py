"""Training steps of complete models, and what they cost. `config.request` has the options, `launch` measures, and
`schema.record` has the record. A session makes many records, so the command is separate (`cli.run`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.kinds.run import compare, shown
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.arranged import arranged, grouped, require_columns
from fp8bench.kinds.run.columns import NAMES
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.results import Folders, Found, Kept
from fp8bench.records.select import Key, Measurement, rounds_of, select, variant
from fp8bench.records.select import grouped as records_by
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import BETWEEN_MACHINES
from fp8bench.tables.document import Document


class Gathered(NamedTuple):
    """A comparison, and the rounds of its rows by their ids."""

    comparison: Comparison
    rounds: dict[str, Record]


def gather(
    kept: Found[Kept[Record]], options: CompareOptions, catalog: Catalog, results_dir: Folders, unread: Unread
) -> Gathered:
    """Return the rows to show of the records in `results_dir`, without those that cannot be believed. kept: what the
    search found, of which some may be broken. A warning says what would measure an instance without a row. Raises
    UsageError if none has a row, and as `compare` does.
    """
    records = results.sound(kept, unread, lambda left: rounds_of(left, options.every, options.wanted))
    elsewhere = _elsewhere(records, options, catalog, results_dir, unread)
    borrowed = _borrowed(elsewhere, records, options, catalog)
    there = {one.instance for one in (*filter(options.wanted.takes, records), *(one.latest for one in borrowed))}
    left = tuple(key for key in options.instances if key in there)
    broken = results.instances_of(kept) - {record.instance for record in records}
    without = [key for key in options.instances if key not in there and key not in broken]
    if not left:
        raise _nothing(options, without, {record.instance for record in records}, results_dir)
    first = options.reference if options.reference.asked_for else replace(options.reference, instance=left[0])
    options = options._replace(instances=left, reference=first)
    ahead: list[Measurement] = []
    said = [_would_measure(key, elsewhere, options, catalog) for key in without]
    if options.gpus and options.ahead is not None:
        of_one_node = [*select(records, options.every, options.wanted), *borrowed]
        ahead, omitted = options.ahead(of_one_node, options.gpus, catalog)
        said += omitted
    every = compare.compare(records, catalog, options, [*borrowed, *ahead])
    rows = tuple(row for row in every.rows if not options.gpus or row.world_size in options.gpus)
    if not rows:
        raise UsageError(f"no row has {' or '.join(map(str, options.gpus))} GPUs", "; ".join(said) or "Omit --gpus")
    found = arranged(every.model_copy(update={"rows": rows, "warnings": (*said, *every.warnings)}), options)
    wanted = {run_id for row in found.rows for run_id in row.run_ids}
    shown_of = (*(record for record, _ in kept), *(record for one in (*borrowed, *ahead) for record in one.rounds))
    return Gathered(found, {record.run_id: record for record in shown_of if record.run_id in wanted})


def _nothing(
    options: CompareOptions, without: Sequence[str], measured: Collection[str], results_dir: Folders
) -> UsageError:
    if not without:
        return UsageError(
            f"no record of {', '.join(options.instances)} can be read; the warnings name the files",
            "Restore them, or measure again with `fp8bench run`",
        )
    key, wanted = without[0], options.wanted
    remedy = f"Run `{_run(key, options)}` there, or add a figure with `fp8bench results import`"
    if key in measured:
        return UsageError(f"no record{wanted.words} for instance {key!r}", remedy)
    return results.nothing_found(f"for instance {key!r}", results_dir, remedy, RUN)


def _run(key: str, options: CompareOptions) -> str:
    return f"fp8bench run --instance {key}{options.wanted.flags}"


def _would_measure(key: str, elsewhere: Sequence[Measurement], options: CompareOptions, catalog: Catalog) -> str:
    """Write what measures an instance without a row, and what that took where most was measured."""
    said = f"{key}: no record{options.wanted.words}, and none from which one can be predicted with a tested error"
    lender, most = max(
        records_by(elsewhere, lambda one: one.latest.instance).items(), key=lambda of: len(of[1]), default=("", [])
    )
    hours = sum(one.took_s for one in most) / 3600
    day = options.as_of or options.today
    query = PriceQuery(day, day >= options.today, options.region, options.purchase)
    price = choose(catalog.instances[key].prices, query) if key in catalog.instances else None
    usd = f", {hours * price.usd_per_hour:.2f} USD" if price is not None and price.usd_per_hour else ""
    took = f" ({math.ceil(hours * 60)} min{usd}, as long as on {lender})" if hours else ""
    return f"{said}; `{_run(key, options)}` there measures it{took}"


def _elsewhere(
    records: Sequence[Record], options: CompareOptions, catalog: Catalog, results_dir: Folders, unread: Unread
) -> list[Measurement]:
    """Return what was measured on any instance of the catalogue, if one in `options` was not."""
    if not _not_run(records, options) or not any(folder.exists() for folder in results.folders_of(results_dir)):
        return []
    kept = results.read(results_dir, catalog.instances)
    sound = results.sound(kept, unread, lambda left: rounds_of(left, False, options.wanted))
    selected = select(sound, False, options.wanted)
    return [one for one in selected if one.latest.status == "ok" and one.latest.source == "measured"]


def _not_run(records: Sequence[Record], options: CompareOptions) -> list[str]:
    ran = {
        one.instance for one in records if one.status == "ok" and one.source == "measured" and options.wanted.takes(one)
    }
    return [name for name in dict.fromkeys(options.instances) if name not in ran]


def _borrowed(
    elsewhere: Sequence[Measurement], records: Sequence[Record], options: CompareOptions, catalog: Catalog
) -> list[Measurement]:
    """Return, for instances of which no wanted record was measured, what was measured on others with the same GPUs,
    else what is predicted from all others.
    """
    known = [name for name in _not_run(records, options) if name in catalog.instances]
    borrowed = [one for name in known for one in lent(elsewhere, name, catalog)]
    left = [name for name in known if all(one.latest.instance != name for one in borrowed)]
    return [*borrowed, *(options.foresee(elsewhere, left, catalog) if options.foresee and elsewhere and left else ())]


def lent(selected: Sequence[Measurement], name: str, catalog: Catalog) -> list[Measurement]:
    """Return what the instance with as many of the same GPU and the most variants measured, the latest of each, as that
    of instance `name`. selected: `ok` measurements.

    The next machine of a type may be faster or slower than those that were measured, so the interval of such a row is
    wider by `certainty.BETWEEN_MACHINES`. Which mode is best is said where it was measured.
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
        """Return rows ranked by what a dollar buys, without instances of which no record can be read. Raises UsageError
        if an instance has no record.
        """
        require_columns(options.view, options.job)
        found = results.read(results_dirs, options.instances)
        every = gather(found, options, catalog, results_dirs, unread).comparison
        column = options.view.group_by
        return shown.document(*([every] if column is None else grouped(every, column)), view=options.view)


KIND = Run(
    name="run",
    record=Record,
    example=(
        *("--mode", "baseline-bf16", "--gpus", "1", "--batch-size", "2"),
        *("--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0.01"),
    ),
    compare_options=frozenset(
        (
            *(
                "reference",
                "price_as_of",
                "region",
                "purchase",
                "allow_mismatch",
                "price",
                "job",
                "budget",
                "within",
                "gpus",
            ),
            *("optimizer", "workload", "batch_size", "grad_accumulation", "gpus"),
            *("columns", "wide", "sort", "filter", "group_by", "best_batch", "notes"),
        )
    ),
    columns=NAMES,
)
