"""Like is compared with like: which rows are of the same work as the reference, and what else a reader must know before
comparing two rows. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from fp8bench.kinds.run.row import Row
from fp8bench.schema.noise import NOISE
from fp8bench.schema.record import Record, not_comparable, unlike_software
from fp8bench.stats.certainty import Place, noise_between
from fp8bench.tables.written import workers

CHOSEN_BY = {"workload": "--workload", "optimizer": "--optimizer", "accumulation": "--grad-accumulation"}
"""The option that chooses among records, by what it chooses of a fingerprint."""


def other_work(rows: Sequence[Row], model: Row | None, of: Mapping[str, Record]) -> dict[str, list[str]]:
    """Return what differs between each row's work and the model's, by the run's id; nothing if it did not run. model:
    the reference, or else the first ok row. of: by the run's id.
    """
    expected = of[model.run_id].fingerprint if model else {}
    return {row.run_id: unlike_work(of[row.run_id].fingerprint, expected) if row.status == "ok" else [] for row in rows}


def of_one_work(rows: Sequence[Row], model: Row | None, of: Mapping[str, Record]) -> list[Row]:
    """Return the measured rows of one work, and the published ones of one: the model's or the first ok row's. What
    did not run is of any work.
    """
    found = []
    for is_measured in (True, False):
        group = [row for row in rows if (row.source == "measured") == is_measured]
        ran = [row for row in group if row.status == "ok"]
        there = [row for row in ran if model is not None and row.run_id == model.run_id]
        unlike = other_work(group, next(iter([*there, *ran]), None), of)
        found += [row for row in group if not unlike[row.run_id]]
    return found


def with_other_work(row: Row, model: Row | None, unlike: Sequence[str], allow_mismatch: bool) -> Row:
    """Return the row, with a mark if it is of other work. model, unlike: as in `other_work`."""
    if not unlike or model is None:
        return row
    if allow_mismatch:
        mark = f"unlike the reference in {', '.join(unlike)}"
    elif row.source != model.source and "published" in (row.source, model.source):
        mark = "published and measured figures are not compared with each other"
    else:
        mark = f"other work than the reference's ({', '.join(unlike)}): {like_with_like(unlike)}"
    return row.model_copy(update={"marks": (*row.marks, mark)})


def unlike_work(fingerprint: dict[str, JsonValue], expected: dict[str, JsonValue]) -> list[str]:
    """Return the names of what differs between two fingerprints."""
    names = dict.fromkeys([*expected, *fingerprint])
    return [name for name in names if fingerprint.get(name) != expected.get(name)]


def like_with_like(unlike: Sequence[str]) -> str:
    """Return what can be done about work that differs: the options that choose, or to measure it again. unlike: from
    `unlike_work`.
    """
    flags = [CHOSEN_BY[name] for name in unlike if name in CHOSEN_BY]
    # What else differs between two workloads mostly follows from the workload.
    if "workload" not in unlike and len(flags) < len(unlike):
        return "measure both with the same settings and version of fp8bench"
    return f"compare like with like ({', '.join(flags)})"


class Likeness(NamedTuple):
    """How a row compares with the reference. verdict: whether a verdict may be given. marks: warnings for a reader.
    noise: how far from equal the complete interval must be for a verdict, as a share.
    """

    verdict: bool = True
    marks: tuple[str, ...] = ()
    noise: float = NOISE


def likeness(record: Record, reference: Record, allow_mismatch: bool) -> Likeness:
    """Return how a row compares. Within one instance, different machines or software prevent a verdict, unless the user
    requests it. Between instances, machines are the question, and different software is marked. Two machines must
    differ by more than those of one type do.
    """
    noise = noise_between(_place(record), _place(reference))
    unlike, software = not_comparable(record, reference), unlike_software(record, reference)
    if unlike:
        how = "unlike the reference in" if allow_mismatch else "not comparable with the reference:"
        return Likeness(allow_mismatch, (f"{how} {', '.join([*unlike, *software])}",), noise)
    return Likeness(marks=(f"unlike the reference in {', '.join(software)}",) if software else (), noise=noise)


def _place(record: Record) -> Place:
    return record.instance, record.machine.id if record.machine else None


def unlike_sizes(row: Row, reference: Row) -> list[str]:
    """Return a mark for the batch size, and one for the workers, if they are not the reference's."""
    marks = []
    if row.batch_size != reference.batch_size:
        marks.append(f"batch {row.batch_size}, reference {reference.batch_size}")
    if row.world_size != reference.world_size:
        marks.append(f"{workers(row.world_size, row.device)}, reference {reference.world_size}")
    return marks


def unlike_joins(row: Row, reference: Row) -> list[str]:
    """Return a mark for how ranks were joined, if it is not like the reference's. For one rank and several by DDP, the
    number of ranks says it.
    """
    joined = {row.joined, reference.joined}
    if None in joined or len(joined) == 1 or joined == {"none", "ddp"}:
        return []
    return [f"ranks joined by {row.joined}, reference {reference.joined}"]


def comparable(row: Row, reference: Row) -> bool:
    """Return whether times are comparable: not a CPU's with a GPU's, not an emulation's, and not of different units."""
    return (row.device, row.unit) == (reference.device, reference.unit) and not (row.emulated or reference.emulated)
