"""Training steps of complete models, and what they cost. `config.request` has the options, `launch` measures, and
`schema.record` has the record. A session makes many records, so the command is separate (`cli.run`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fp8bench.kinds.kind import CompareOptions, Kind, Log, Unread
from fp8bench.kinds.run import compare, shown
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.arranged import arranged, grouped, require_columns
from fp8bench.kinds.run.columns import NAMES
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.results import Folders, Found, Kept
from fp8bench.records.select import Key, Measurement, rounds_of, select, variant
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
    """Return the rows to show of the records in `results_dir`, without those that cannot be believed and without
    instances of which no record can be read. kept: what the search found, of which some may be broken. Raises
    UsageError if an instance has no record, and as `compare` does.
    """
    records = results.sound(kept, unread, lambda left: rounds_of(left, options.every, options.wanted))
    borrowed = _borrowed(records, options, catalog, results_dir, unread)
    there = {record.instance for record in (*records, *(one.latest for one in borrowed))}
    left = tuple(key for key in options.instances if key in there)
    if left != options.instances:
        known = results.instances_of(kept) | there
        for key in (key for key in options.instances if key not in known):
            run = f"fp8bench run --instance {key}{options.wanted.flags}"
            remedy = f"Run `{run}` there, or add a figure with `fp8bench results import`"
            raise results.nothing_found(f"for instance {key!r}", results_dir, remedy, RUN)
        if not left:
            raise UsageError(
                f"no record of {', '.join(options.instances)} can be read; the warnings name the files",
                "Restore them, or measure again with `fp8bench run`",
            )
        reference = options.reference
        if not reference.asked_for:
            reference = replace(reference, instance=left[0])
        options = options._replace(instances=left, reference=reference)
    found = arranged(compare.compare(records, catalog, options, borrowed), options)
    wanted = {run_id for row in found.rows for run_id in row.run_ids}
    every = (*(record for record, _ in kept), *(record for one in borrowed for record in one.rounds))
    return Gathered(found, {record.run_id: record for record in every if record.run_id in wanted})


def _borrowed(
    records: Sequence[Record], options: CompareOptions, catalog: Catalog, results_dir: Folders, unread: Unread
) -> list[Measurement]:
    """Return, for instances of which no wanted record was measured, what was measured on others with the same GPUs,
    else what is predicted from all others.
    """
    ran = {
        one.instance for one in records if one.status == "ok" and one.source == "measured" and options.wanted.takes(one)
    }
    known = [name for name in dict.fromkeys(options.instances) if name in catalog.instances and name not in ran]
    if not known or not any(folder.exists() for folder in results.folders_of(results_dir)):
        return []
    kept = results.read(results_dir, catalog.instances)
    sound = results.sound(kept, unread, lambda left: rounds_of(left, False, options.wanted))
    selected = select(sound, False, options.wanted)
    measured = [one for one in selected if one.latest.status == "ok" and one.latest.source == "measured"]
    borrowed = [one for name in known for one in lent(measured, name, catalog)]
    left = [name for name in known if all(one.latest.instance != name for one in borrowed)]
    return [*borrowed, *(options.foresee(measured, left, catalog) if options.foresee and measured and left else ())]


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
            *("reference", "price_as_of", "region", "purchase", "allow_mismatch", "price", "job", "budget", "within"),
            *("optimizer", "workload", "batch_size", "grad_accumulation"),
            *("columns", "wide", "sort", "filter", "group_by", "best_batch", "notes"),
        )
    ),
    columns=NAMES,
)
