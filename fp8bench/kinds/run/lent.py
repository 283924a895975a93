"""Rows of instances where nothing was measured: the steps of another instance with the same GPUs, at their own price.

The next machine of a type may be faster or slower than those that were measured, so the interval of such a row is wider
by `certainty.BETWEEN_MACHINES`. Which mode is best is said where it was measured.
"""

from collections.abc import Iterable, Sequence

from fp8bench.records.select import Filter, Key, Measurement, variant
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import BETWEEN_MACHINES


def lenders(name: str, catalog: Catalog) -> tuple[str, ...]:
    """Return the other instances of the catalogue that have as many of the same GPU."""
    wanted = catalog.instances.get(name)
    if wanted is None or not wanted.gpu:
        return ()
    size = wanted.gpu, wanted.gpu_count
    return tuple(key for key, one in catalog.instances.items() if key != name and (one.gpu, one.gpu_count) == size)


def without_any(records: Iterable[Record], names: Sequence[str], wanted: Filter) -> list[str]:
    """Return the instances of which no wanted record was measured."""
    left = dict.fromkeys(names)
    for one in records:
        if one.instance in left and one.status == "ok" and one.source == "measured" and wanted.takes(one):
            del left[one.instance]
    return [*left]


def lent(selected: Sequence[Measurement], name: str, catalog: Catalog) -> list[Measurement]:
    """Return what the lender with the most variants measured, the latest of each, as that of instance `name`. selected:
    `ok` measurements.
    """
    own, those = catalog.instances[name], lenders(name, catalog)

    def fits(one: Measurement) -> bool:
        config = one.latest.config
        return (
            one.latest.instance in those
            and config is not None
            and (config.nodes, config.world_size) == (1, own.gpu_count)
        )

    by_lender: dict[str, dict[Key, Measurement]] = {}
    for one in filter(fits, selected):
        by_lender.setdefault(one.latest.instance, {})[variant(one.latest)] = one
    most = max(by_lender.values(), key=len, default={})
    return [_of(name, one) for one in most.values()]


def as_of(name: str, record: Record) -> Record:
    """Return the record as one of instance `name`, of no known machine: that of the instance may be any."""
    return record.model_copy(update={"instance": name, "run_id": f"{record.run_id}@{name}", "machine": None})


def _of(name: str, measurement: Measurement) -> Measurement:
    rounds = tuple(as_of(name, one) for one in measurement.rounds)
    lender = measurement.latest.instance
    return Measurement(rounds, measured_on=lender, origin="same-gpu", elsewhere=BETWEEN_MACHINES)
