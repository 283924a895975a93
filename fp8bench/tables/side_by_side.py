"""Records of the same work side by side: the name of each, and how their machines differ.

A record is named by its instance. Several records of one instance are distinguished by their time in UTC, with as
little precision as that needs, or by their ids if even the second is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8bench.schema.record import RecordHead
from fp8bench.tables.document import NOTHING

READ = ("", "torch", "cuda", "transformer-engine", "torchao", "driver")
"""The parts of an environment that change a GEMM's time or a mode's error: device, package versions, driver."""

MOMENTS: tuple[Callable[[RecordHead], str], ...] = (
    lambda record: f"{record.created_utc:%Y-%m-%d %H:%M}",
    lambda record: f"{record.created_utc:%Y-%m-%d %H:%M:%S}",
    lambda record: record.run_id,
)


@dataclass(frozen=True)
class Difference:
    """A property that is not the same for every record. values: one for each record; None is unknown or absent."""

    name: str
    values: tuple[str | None, ...]


def labels(records: Sequence[RecordHead]) -> tuple[str, ...]:
    """Return a unique name for each record; ids are assumed to be unique."""

    def label(record: RecordHead) -> str:
        alike = [other for other in records if other.instance == record.instance]
        if len(alike) == 1:
            return record.instance
        # The least precision that distinguishes all records of this instance.
        precise = (write for write in MOMENTS if len(set(map(write, alike))) == len(alike))
        return f"{record.instance} {next(precise, MOMENTS[-1])(record)}"

    return tuple(map(label, records))


def device(record: RecordHead) -> str:
    """Return the name of the GPU, or `CPU` if no GPU is known."""
    return (record.environment.device_name if record.environment else None) or "CPU"


def differences(records: Sequence[RecordHead]) -> tuple[Difference, ...]:
    """Return the differences that change numbers: the machine if one instance has several, the device, and the versions
    of torch, CUDA, the driver and the libraries of modes.
    """

    known: list[dict[str, str | None]] = [
        # Without a GPU, the CPU computes.
        {"": there.device_name or there.cpu, **there.versions, "driver": there.driver} if there else {}
        for there in (record.environment for record in records)
    ]
    found = [Difference(name, tuple(one.get(name) for one in known)) for name in READ]
    machines = {(record.instance, record.machine.id if record.machine else None) for record in records}
    # Machines of different instances differ anyway.
    if len(machines) > len({instance for instance, _ in machines}):
        names = tuple(str(record.machine) if record.machine else None for record in records)
        found.insert(0, Difference("machine", names))
    return tuple(one for one in found if len(set(one.values)) > 1)


def differences_line(differences: Sequence[Difference], labels: Sequence[str]) -> list[str]:
    """Return one line that lists the differences record by record; empty if there are none."""
    every = (
        f"{label}: {', '.join(f'{one.name} {one.values[place] or NOTHING}'.strip() for one in differences)}"
        for place, label in enumerate(labels)
    )
    return [f"{'; '.join(every)}."] if differences else []


def said_by(labels: Sequence[str], sentences: Sequence[Sequence[str]]) -> list[str]:
    """Return each sentence once, after the labels of the records that have it, if not all of them have it."""
    who: dict[str, list[str]] = {}
    for label, said in zip(labels, sentences, strict=True):
        for sentence in said:
            who.setdefault(sentence, []).append(label)
    return [
        sentence if len(saying) == len(labels) else f"{', '.join(saying)}: {sentence}"
        for sentence, saying in who.items()
    ]
