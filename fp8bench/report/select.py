"""Which records a comparison shows."""

from collections.abc import Sequence

from fp8bench.schema.record import Record

Variant = tuple[str, str, str | None, bool | None, str | None]


def variant(record: Record) -> Variant:
    """What is compared: instance, mode, recipe, compile, attention."""
    what = record.config or record.figure
    assert what is not None, "the schema gives every record one of them"
    evidence = record.evidence
    if evidence is not None:
        return record.instance, what.mode, what.recipe, evidence.compile.enabled, evidence.attention
    figure = record.figure
    return (
        record.instance,
        what.mode,
        what.recipe,
        figure.compile if figure else None,
        figure.attention if figure else None,
    )


def select(records: Sequence[Record], every: bool, workload: str | None = None) -> list[Record]:
    """records: oldest first. Keeps the latest `ok` record of each variant, or with `every` all of them.

    Figures that were not measured stand in for an instance only while nothing of it was measured. A mode that has no
    `ok` record on an instance is kept with its latest outcome, so that a failure is seen and not left out.
    """
    chosen = [r for r in records if workload is None or _workload(r) == workload]
    if every:
        return chosen
    measured = {r.instance for r in chosen if r.status == "ok" and r.source == "measured"}
    ok = [r for r in chosen if r.status == "ok" and (r.source == "measured" or r.instance not in measured)]
    latest = {variant(record): record for record in ok}
    done = {_mode(record) for record in ok}
    stopped = {_mode(record): record for record in chosen if record.status != "ok" and _mode(record) not in done}
    return [*latest.values(), *stopped.values()]


def _mode(record: Record) -> Variant:
    return (*variant(record)[:3], None, None)


def _workload(record: Record) -> str:
    what = record.config or record.figure
    assert what is not None, "the schema gives every record one of them"
    return what.workload
