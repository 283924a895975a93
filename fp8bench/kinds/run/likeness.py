"""Like is compared with like: which rows are of the same work as the reference, and what else a reader must know before
comparing two rows. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from fp8bench.kinds.run.marks import Mark, not_compared
from fp8bench.kinds.run.row import Row
from fp8bench.schema.record import Record, not_comparable, unlike_software
from fp8bench.stats.certainty import NOISE, noise_between
from fp8bench.tables.written import workers

CHOSEN_BY = {"workload": "--workload", "optimizer": "--optimizer", "accumulation": "--grad-accumulation"}
"""The option that chooses among records, by what it chooses of a fingerprint."""


def other_work(rows: Sequence[Row], model: Row | None, of: Mapping[str, Record]) -> dict[str, list[str]]:
    """Return what differs between each row's work and the model's, by the run's id; nothing if it did not run."""
    expected = of[model.run_id].fingerprint if model else {}
    return {row.run_id: unlike_work(of[row.run_id].fingerprint, expected) if row.status == "ok" else [] for row in rows}


def of_one_work(rows: Sequence[Row], model: Row | None, of: Mapping[str, Record]) -> list[Row]:
    """Return the timed rows of one work, and the published ones of one; what did not run is of any."""
    found = []
    for timed in (True, False):
        group = [row for row in rows if row.timed == timed]
        ran = [row for row in group if row.status == "ok"]
        there = [row for row in ran if model is not None and row.run_id == model.run_id]
        unlike = other_work(group, next(iter([*there, *ran]), None), of)
        found += [row for row in group if not unlike[row.run_id]]
    return found


def with_other_work(row: Row, model: Row | None, unlike: Sequence[str], allow_mismatch: bool) -> Row:
    """Return the row, with a mark if it is of other work."""
    if not unlike or model is None:
        return row
    if allow_mismatch:
        mark = f"unlike the reference in {', '.join(unlike)}"
    elif row.source != model.source and "published" in (row.source, model.source):
        mark = "published and measured figures are not compared with each other"
    else:
        flags = [CHOSEN_BY[name] for name in unlike if name in CHOSEN_BY]
        remedy = f"compare like with like ({', '.join(flags)})"
        # What else differs between two workloads mostly follows from the workload.
        if "workload" not in unlike and len(flags) < len(unlike):
            remedy = "measure both with the same settings and version of fp8bench"
        mark = f"other work than the reference's ({', '.join(unlike)}): {remedy}"
    return row.model_copy(update={"marks": (*row.marks, not_compared(mark))})


def unlike_work(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    """Return the names of what differs between two fingerprints."""
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


class Likeness(NamedTuple):
    """verdict: whether one may be given. marks: warnings for a reader. noise: as in `stats.ratio`."""

    verdict: bool = True
    marks: tuple[Mark, ...] = ()
    noise: float = NOISE


def likeness(record: Record, reference: Record, allow_mismatch: bool) -> Likeness:
    """Return how a row compares. Within one instance, different machines or software prevent a verdict, unless the user
    requests it. Between instances, machines are the question, and different software is marked. Two machines must
    differ by more than those of one type do.
    """
    one, other = ((each.instance, each.machine.id if each.machine else None) for each in (record, reference))
    noise = noise_between(one, other)
    unlike, software = not_comparable(record, reference), unlike_software(record, reference)
    if unlike:
        how = "unlike the reference in" if allow_mismatch else "not comparable with the reference:"
        return Likeness(allow_mismatch, (not_compared(f"{how} {', '.join([*unlike, *software])}"),), noise)
    marks = (not_compared(f"unlike the reference in {', '.join(software)}"),) if software else ()
    return Likeness(marks=marks, noise=noise)


def unlike_sizes(row: Row, reference: Row) -> Iterator[Mark]:
    """Yield marks for the batch size, the workers, and how ranks were joined, if they are not the reference's."""
    if row.batch_size != reference.batch_size:
        yield not_compared(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        yield not_compared(f"{workers(row.world_size, row.device)}, reference {reference.world_size}")
    joined = {row.joined, reference.joined}
    # For one rank and several by DDP, the number of ranks says how they were joined.
    if None not in joined and len(joined) > 1 and joined != {"none", "ddp"}:
        yield not_compared(f"ranks joined by {row.joined}, reference {reference.joined}")


def comparable(row: Row, reference: Row) -> bool:
    """Return whether times are comparable: not a CPU's with a GPU's, not an emulation's, and not of different units."""
    return (row.device, row.unit) == (reference.device, reference.unit) and not (row.emulated or reference.emulated)
