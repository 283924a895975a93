"""Records of the same work side by side: the name of each, and how their machines differ.

A record is named by its instance. Several records of one instance are distinguished by their time in UTC, with as
little precision as that needs, or by their ids if even the second is the same.
"""

from collections.abc import Callable, Sequence

from fp8bench.schema.record import RecordHead
from fp8bench.tables.document import NOTHING

READ = ("", "torch", "cuda", "transformer-engine", "torchao", "driver")
"""The parts of an environment that change a GEMM's time or a mode's error: device, package versions, driver."""

MOMENTS: tuple[Callable[[RecordHead], str], ...] = (
    lambda record: record.instance,
    lambda record: f"{record.instance} {record.created_utc:%Y-%m-%d %H:%M}",
    lambda record: f"{record.instance} {record.created_utc:%Y-%m-%d %H:%M:%S}",
    lambda record: f"{record.instance} {record.run_id}",
)


def labels(records: Sequence[RecordHead]) -> tuple[str, ...]:
    """Return a unique name for each record; ids are assumed to be unique."""

    def label(record: RecordHead) -> str:
        alike = [other for other in records if other.instance == record.instance]
        # The least precision that distinguishes all records of this instance.
        precise = (write for write in MOMENTS if len(set(map(write, alike))) == len(alike))
        return next(precise, MOMENTS[-1])(record)

    return tuple(map(label, records))


def where(records: Sequence[RecordHead], names: Sequence[str]) -> str:
    """Return each record's name and device in words, e.g. `p5 (NVIDIA H100 80GB HBM3)`. names: of the records."""
    return ", ".join(f"{name} ({one.device_name or 'CPU'})" for name, one in zip(names, records, strict=True))


def differences(records: Sequence[RecordHead]) -> dict[str, tuple[str | None, ...]]:
    """Return the differences that change numbers, by name, with the value of each record, None if it is unknown or
    absent: the machine if one instance has several, the device (named ""), and the versions of torch, CUDA, the driver
    and the libraries of modes.
    """
    known: list[dict[str, str | None]] = [
        # Without a GPU, the CPU computes.
        {"": there.device_name or there.cpu, **there.versions, "driver": there.driver} if there else {}
        for there in (record.environment for record in records)
    ]
    machines = {(record.instance, record.machine.id if record.machine else None) for record in records}
    found: dict[str, tuple[str | None, ...]] = {}
    # Machines of different instances differ anyway.
    if len(machines) > len({instance for instance, _ in machines}):
        found["machine"] = tuple(str(record.machine) if record.machine else None for record in records)
    found |= {name: tuple(one.get(name) for one in known) for name in READ}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def differences_line(records: Sequence[RecordHead], names: Sequence[str]) -> list[str]:
    """Return one line that lists the differences record by record; empty if there are none."""
    found = differences(records)
    every = (
        f"{label}: {', '.join(f'{name} {values[place] or NOTHING}'.strip() for name, values in found.items())}"
        for place, label in enumerate(names)
    )
    return [f"{'; '.join(every)}."] if found else []


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
