"""Whether tables show an imported figure, and what it is shown with."""

from collections.abc import Iterator, Sequence

from fp8bench.records.select import select, variant
from fp8bench.schema.record import Record


def notices(figure: Record, kept: Sequence[Record]) -> Iterator[str]:
    """Yield a line for each thing to know about an import. kept: the instance's other records, oldest first."""
    everything = sorted([*kept, figure], key=lambda record: record.created_utc)
    shown = {record.run_id: record for one in select(everything, every=False) for record in one.rounds}
    name = figure.instance
    if figure.run_id not in shown:
        measured = any(record.source == "measured" and record.status == "ok" for record in kept)
        why = (
            f"{name} has measured records, and a figure is shown only where there is none"
            if measured
            else "a later figure of the same mode, batch and GPUs is kept"
        )
        yield f"no table shows this figure: {why}. `fp8bench compare {name} --all --allow-mismatch` does"
        return
    before = [record for record in kept if record.source != "measured" and variant(record) == variant(figure)]
    if before:
        yield f"this figure replaces {before[-1].run_id}, which tables show with --all only"
    others = [record for record in shown.values() if record.status == "ok" and record.fingerprint != figure.fingerprint]
    if others:
        workload = figure.what.workload
        unlike = any(record.what.workload != workload for record in others)
        flag = f"--workload {workload}" if unlike else "--allow-mismatch"
        yield f"{name} has records of other work, with which it is not comparable: `compare` shows it with {flag}"
