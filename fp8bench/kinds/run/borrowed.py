"""Rows of instances where nothing was measured: from the same GPUs elsewhere, else predicted; else what would measure
them.
"""

import math
from collections.abc import Sequence

from fp8bench.kinds.kind import CompareOptions, Unread
from fp8bench.pricing.choose import choose
from fp8bench.records import results
from fp8bench.records.results import Folders
from fp8bench.records.select import Key, Measurement, grouped, variant
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import BETWEEN_MACHINES


def run_there(key: str, options: CompareOptions) -> str:
    """Return the call that measures an instance, with the options of the comparison."""
    return f"fp8bench run --instance {key}{options.wanted.flags}"


def would_measure(key: str, elsewhere: Sequence[Measurement], options: CompareOptions, catalog: Catalog) -> str:
    """Write what measures an instance without a row, and what that took where most was measured."""
    said = f"{key}: no record{options.wanted.words}, and none from which one can be predicted with a tested error"
    lender, most = max(
        grouped(elsewhere, lambda one: one.latest.instance).items(), key=lambda of: len(of[1]), default=("", [])
    )
    hours = sum(one.took_s for one in most) / 3600
    price = choose(catalog.instances[key].prices, options.query()) if key in catalog.instances else None
    usd = f", {hours * price.usd_per_hour:.2f} USD" if price is not None and price.usd_per_hour else ""
    took = f" ({math.ceil(hours * 60)} min{usd}, as long as on {lender})" if hours else ""
    return f"{said}; `{run_there(key, options)}` there measures it{took}"


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
