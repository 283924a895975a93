"""The comparisons of one call: one of all rows, or one for each group. Groups by batch size and by machine have a
reference each, because a mode is compared with the baseline at the same size, or on the same machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run import compare
from fp8bench.kinds.run.arranged import arranged, grouped
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record

Whole = Callable[[Record], Record]

Compared = Callable[[Sequence[Record], CompareOptions], Comparison]
"""Compares the records, and arranges the rows."""


def views(records: Sequence[Record], catalog: Catalog, options: CompareOptions, whole: Whole) -> list[Comparison]:
    """Return the comparison, or one for each group. Raises UsageError as `compare` does."""

    def compared(those: Sequence[Record], of: CompareOptions) -> Comparison:
        return arranged(compare.compare(those, catalog, of, whole), of)

    every = compared(records, options)
    match options.view.group_by:
        case "batch":
            sizes = sorted({row.batch_size for row in every.rows})
            return [_at_batch(size, every.rows, records, options, compared) for size in sizes]
        case "machine":
            names = _machines(every.rows)
            return [_on_machine(one, names[one], every.rows, records, options, compared) for one in names]
        case None:
            best = {"name": "each mode at its best batch"} if options.view.best_batch else {}
            return [every.model_copy(update=best)]
        case column:
            return grouped(every, column)


def _at_batch(
    size: int, rows: Sequence[Row], records: Sequence[Record], options: CompareOptions, compared: Compared
) -> Comparison:
    own = _on(options, [row for row in rows if row.batch_size == size])
    own = own._replace(wanted=replace(options.wanted, batch_size=size))
    return compared(records, own).model_copy(update={"name": f"same batch: {size}"})


def _machines(rows: Sequence[Row]) -> dict[str | None, str]:
    """Return each machine's name. A machine may have been given a label after its first records."""
    labels: dict[str | None, str | None] = {}
    for row in rows:
        labels[row.machine] = row.machine_label or labels.get(row.machine)
    return {one: f"{label} ({one})" if label else one or "unknown" for one, label in labels.items()}


def _on_machine(
    machine: str | None,
    name: str,
    rows: Sequence[Row],
    records: Sequence[Record],
    options: CompareOptions,
    compared: Compared,
) -> Comparison:
    own = _on(options, [row for row in rows if row.machine == machine])
    there = [record for record in records if (record.machine.id if record.machine else None) == machine]
    return compared(there, own).model_copy(update={"name": f"same machine: {name}"})


def _on(options: CompareOptions, rows: Sequence[Row]) -> CompareOptions:
    """Return options for these rows alone, compared with the reference on the first of their instances."""
    there = {row.instance for row in rows}
    instances = tuple(key for key in options.instances if key in there)
    reference = options.reference
    if not reference.asked_for:
        reference = replace(reference, instance=instances[0])
    return options._replace(instances=instances, reference=reference)
