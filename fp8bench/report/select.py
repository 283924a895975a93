"""Which records a comparison shows."""

from collections.abc import Sequence

from fp8bench.schema.record import Record

Variant = tuple[str | int | bool | None, ...]


def variant(record: Record) -> Variant:
    """What makes two records two rows and not two tries at one: all that is compared, and all that is marked."""
    what = record.what
    return (*mode(record), record.compiled, record.attention, what.workload, what.batch_size, what.world_size)


def mode(record: Record) -> Variant:
    """The mode on its instance."""
    return record.instance, record.what.mode, record.what.recipe


def select(records: Sequence[Record], every: bool, workload: str | None = None) -> list[Record]:
    """records: oldest first. Keeps the latest `ok` record of each variant, or with `every` all of them.

    Figures that were not measured stand in for an instance only while nothing of it was measured. A mode that has no
    measured `ok` record on an instance is kept with its latest outcome, so that a failure is seen and not left out.
    """
    chosen = [record for record in records if workload in (None, record.what.workload)]
    if every:
        return chosen
    ok = [record for record in chosen if record.status == "ok"]
    measured = {record.instance for record in ok if record.source == "measured"}
    latest = {variant(r): r for r in ok if r.source == "measured" or r.instance not in measured}
    done = {mode(record) for record in ok if record.source == "measured"}
    stopped = {mode(record): record for record in chosen if record.status != "ok" and mode(record) not in done}
    return [*latest.values(), *stopped.values()]
