"""Which records are shown, and which of them make one row: the rounds of one variant in one session."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fp8bench.records.layout import SomeRecord
from fp8bench.records.stopped import still_shown
from fp8bench.schema.machine import MachineIdentity, Software, same_machine, software_of
from fp8bench.schema.record import Record, RecordHead

Key = tuple[str | int | bool | None, ...]


@dataclass(frozen=True)
class Measurement:
    """rounds: its `ok` records of one machine and software, oldest first; where there is none, the one that tells why.
    stopped: rounds of the same mode and session that came to nothing.
    """

    rounds: tuple[Record, ...]
    stopped: tuple[Record, ...] = ()

    @property
    def latest(self) -> Record:
        """The record that speaks for all of them in what does not differ between rounds."""
        return self.rounds[-1]

    @property
    def machine(self) -> MachineIdentity | None:
        """The machine of all rounds, by the name that it was last given; None where it is unknown."""
        named = [record.machine for record in self.rounds if record.machine and record.machine.label]
        return named[-1] if named else self.latest.machine

    @property
    def software(self) -> Software | None:
        """The software of all rounds; None for a figure from elsewhere."""
        return software_of(self.latest.environment)


def variant(record: Record) -> Key:
    """What makes two records two rows and not two tries at one: all that is compared, and all that is marked."""
    what, config = record.what, record.config
    trained_with = (config.optimizer, config.data) if config is not None else ()
    sizes = (what.workload, what.batch_size, what.world_size)
    return (*mode(record), record.execution, record.attention, *sizes, *trained_with)


def mode(record: Record) -> Key:
    """The mode on its instance."""
    return record.instance, record.what.mode, record.what.recipe


def system(record: RecordHead) -> Key:
    """The machine and the software: what rounds of one row have in common. Unknown ones are alike."""
    software = software_of(record.environment)
    return (record.machine.id if record.machine else None, *(software.values() if software is not None else ()))


def session(record: Record) -> str:
    """The session; a record without one is one of its own."""
    return record.session.session_id if record.session else record.run_id


def select(
    records: Sequence[Record],
    every: bool,
    workload: str | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
) -> list[Measurement]:
    """records: oldest first. Keeps the latest session's rounds of each variant, machine and software, or with `every`
    each record for itself. workload, batch_size, optimizer: only records of these.

    Figures that were not measured stand in for an instance only while nothing of it was measured. What stopped is kept
    until the same variant is run again (see `stopped`), so that a failure is seen and not left out. A mode that was
    invalid in any round of the session is invalid: what is proved in one process and not in the next is not proved.
    """
    chosen = [
        record
        for record in records
        if workload in (None, record.what.workload)
        and batch_size in (None, record.what.batch_size)
        and optimizer in (None, record.config.optimizer if record.config else None)
    ]
    if every:
        return [Measurement((record,)) for record in chosen]
    ok = [record for record in chosen if record.status == "ok"]
    measured = {record.instance for record in ok if record.source == "measured"}
    latest = {(*variant(r), *system(r)): r for r in ok if r.source == "measured" or r.instance not in measured}
    found = [_with_its_rounds(record, chosen) for record in latest.values()]
    # Two variants of one session may both have given way to the round that was invalid.
    found = list({one.latest.run_id: one for one in found}.values())
    told = [record.run_id for one in found for record in (*one.rounds, *one.stopped)]
    return [*found, *(Measurement((record,)) for record in still_shown(chosen, told))]


def _with_its_rounds(latest: Record, records: Iterable[Record]) -> Measurement:
    together = [
        record
        for record in records
        if session(record) == session(latest) and same_machine(record.machine, latest.machine)
    ]
    stopped = tuple(
        record
        for record in together
        if record.status != "ok"
        and mode(record) == mode(latest)
        and record.what.batch_size == latest.what.batch_size
        # One that stopped early may not have told its software.
        and (record.environment is None or system(record) == system(latest))
    )
    invalid = [record for record in stopped if record.status == "invalid"]
    if invalid:
        return Measurement((invalid[-1],))
    row = variant(latest), system(latest)
    rounds = [record for record in together if record.status == "ok" and (variant(record), system(record)) == row]
    return Measurement(tuple(rounds), stopped)


def latest_alike(records: Sequence[SomeRecord]) -> list[SomeRecord]:
    """records: of one kind, oldest first. The latest of each instance, machine, software and fingerprint."""
    latest = {(record.instance, *system(record), _work(record)): record for record in records}
    return list(latest.values())


def in_order(records: Iterable[SomeRecord], instances: Sequence[str]) -> list[SomeRecord]:
    """By instance as these are named, each instance's oldest first. Raises ValueError for an instance not named."""
    return sorted(records, key=lambda record: (instances.index(record.instance), record.created_utc))


def same_work(records: Iterable[SomeRecord]) -> list[list[SomeRecord]]:
    """Those of one fingerprint together, in the order of each one's first."""
    found: dict[str, list[SomeRecord]] = {}
    for record in records:
        found.setdefault(_work(record), []).append(record)
    return list(found.values())


def _work(record: RecordHead) -> str:
    return json.dumps(record.fingerprint, sort_keys=True)
