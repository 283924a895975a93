"""On which machine and with which software a row was measured: what keeps two rows of one instance apart, and from a
verdict on each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8bench.kinds.run.row import Row
from fp8bench.schema.identity import Software, differing, not_comparable, unlike_software
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Likeness:
    """How a row stands to the reference. verdict: whether one may be given. marks: what a reader must be told of it."""

    verdict: bool = True
    marks: tuple[str, ...] = ()


def likeness(record: Record, reference: Record, allow_mismatch: bool) -> Likeness:
    """Within one instance unlike machines or software bar a verdict, unless the user asked for it; between instances
    unlike machines are the question, and unlike software is told.
    """
    unlike = not_comparable(record, reference)
    if unlike:
        how = "unlike the reference in" if allow_mismatch else "not comparable with the reference:"
        return Likeness(allow_mismatch, (f"{how} {', '.join(unlike)}",))
    software = unlike_software(record, reference)
    return Likeness(marks=(f"unlike the reference in {', '.join(software)}",) if software else ())


def told_apart(rows: Sequence[Row]) -> list[Row]:
    """The rows, marked with their machine where those of one instance have several, and likewise with each part of the
    software.
    """
    of_instance: dict[str, list[Row]] = {}
    for row in rows:
        if row.source == "measured":
            of_instance.setdefault(row.instance, []).append(row)
    return [
        row.model_copy(update={"marks": (*_names(row, of_instance.get(row.instance, ())), *row.marks)}) for row in rows
    ]


def _names(row: Row, beside: Sequence[Row]) -> list[str]:
    names = []
    if len({other.machine for other in beside}) > 1:
        label = f"{row.machine_label} ({row.machine})" if row.machine_label else row.machine
        names.append(f"machine {label or 'unknown'}")
    if row.software is not None:
        softwares: list[Software] = [other.software for other in beside if other.software is not None]
        unlike = dict.fromkeys(name for other in softwares for name in differing(row.software, other))
        names += [f"{name} {row.software.get(name) or 'unknown'}" for name in unlike]
    return names
