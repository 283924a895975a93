"""Selects records: those that a `Filter` takes, the latest of each variant, and the rounds that make one row of a
table. Two runs are of one variant if their settings are the same, or if both are known to be executed in the same way:
a run may have stopped before that was decided. A failure stays in the table until the same variant is run again.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeVar

from fp8bench import registry
from fp8bench.records.layout import SomeRecord
from fp8bench.schema.config import OF_ALL, Device, RunConfig
from fp8bench.schema.errors import Status
from fp8bench.schema.execution import VARIANTS, OptimizerName, Variant, variant_of, variants_of
from fp8bench.schema.machine import HARDWARE, RELEASE, MachineIdentity, Software, differences, same_machine, software_of
from fp8bench.schema.option import flag_of
from fp8bench.schema.record import Record, RecordHead, Source

Key = tuple[object, ...]
_Item = TypeVar("_Item")
_Group = TypeVar("_Group")

BY_WORK = ("workload", "batch_size", "optimizer", "grad_accumulation")  # options of what measures too
OF_RECORD = ("instance", "status", "source", "execution")


@dataclass(frozen=True)
class Filter:
    """What records must have in common; None: anything. mode: with or without its recipe. batch_size: per worker."""

    instance: str | None = None
    status: Status | None = None
    source: Source | None = None
    execution: Variant | None = None
    session: str | None = None
    mode: str | None = None
    workload: str | None = None
    batch_size: int | None = None
    world_size: int | None = None
    device: Device | None = None
    optimizer: OptimizerName | None = None
    grad_accumulation: int | None = None

    def takes(self, record: RecordHead) -> bool:
        """Return whether the record, of any kind, matches all fields."""
        what = record.what if isinstance(record, Record) else getattr(record, "config", None)
        for name, wanted in vars(self).items():
            if wanted is None or (name == "mode" and wanted == getattr(what, "mode_label", None)):
                continue
            if name == "session" and isinstance(record, Record):
                found: object = session(record)
            else:
                found = getattr(record if name in OF_RECORD else what, name, None)
            if wanted != found:
                return False
        return True

    def of(self, records: Iterable[SomeRecord]) -> list[SomeRecord]:
        return [record for record in records if self.takes(record)]

    @property
    def words(self) -> str:
        """For a sentence about records: ` of vit-huge at batch size 64 with adam in 4 micro-batches`, or nothing."""
        number = self.grad_accumulation
        given = {"of": self.workload, "at batch size": self.batch_size, "with": self.optimizer, "in": number}
        said = "".join(f" {word} {value}" for word, value in given.items() if value)
        return f"{said} micro-batches" if number else said

    @property
    def flags(self) -> str:
        """` --workload vit-huge --batch-size 64`, the options by which a run meets what `words` says."""
        given = ((flag_of(name), getattr(self, name)) for name in BY_WORK)
        return "".join(f" {flag} {value}" for flag, value in given if value)


def broadest_first(there: Mapping[str, Collection[tuple[str, object]]]) -> list[str]:
    """Return workloads, those of most instances, then of most unlike entries, then of most first. there: (instance,
    entry) of each.
    """

    def breadth(name: str) -> tuple[int, int, int]:
        of = there[name]
        return len(dict(of)), len({*of}), len(of)

    return sorted(sorted(there), key=breadth, reverse=True)


def of_several(shown: str, others: Iterable[str], without: Sequence[str]) -> str:
    """Say which workload is shown, which others there are, and which instances have no record of it."""
    missing = f"; {', '.join(without)} has no record of it" if without else ""
    return f"{shown}; also measured: {', '.join(others)} (--workload){missing}"


def work_of(record: Record) -> Filter:
    """Return the filter by work, as a command's options would give it, that takes this record."""
    optimizer = record.config.optimizer if record.config else None
    return Filter(workload=record.what.workload, batch_size=record.what.batch_size, optimizer=optimizer)


ALL = Filter()


@dataclass(frozen=True)
class Measurement:
    """A row of a table. rounds: its `ok` records of one machine and software, oldest first; or the one that says why
    there are none. stopped: others of its mode and session. measured_on: another instance, whose rounds these are, of
    the same GPUs or as predicted (origin). elsewhere: by what share this one may differ. doubts: about a prediction.
    of_other_code: how many rounds of the session are left out, since the code of their mode or workload was another.
    missing: numbers of rounds that the session must have had, of which there is no record.
    """

    rounds: tuple[Record, ...]
    stopped: tuple[Record, ...] = ()
    measured_on: str | None = None
    origin: Literal["same-gpu", "predicted"] | None = None
    elsewhere: float = 0.0
    doubts: tuple[str, ...] = ()
    of_other_code: int = 0
    missing: tuple[int, ...] = ()

    @property
    def latest(self) -> Record:
        """The record that stands for all rounds in what does not differ between them."""
        return self.rounds[-1]

    @property
    def machine(self) -> MachineIdentity | None:
        """The machine of all rounds, with the name that it was last given; None if unknown."""
        named = [record.machine for record in self.rounds if record.machine and record.machine.label]
        return named[-1] if named else self.latest.machine

    @property
    def took_s(self) -> float:
        """What its rounds took, from the start of their ranks; 0 if unknown."""
        return sum(sum((one.phases_s or {}).values()) for one in self.rounds)

    @property
    def software(self) -> Software | None:
        return software_of(self.latest.environment)


NO_ROW_OF_ITS_OWN = ("compile", "cuda_graphs", "te_attention", "parallel", "fp8_layer_names")
"""Settings whose outcome distinguishes rows instead: execution, attention, how ranks were joined, and the recipe."""

MAKE_ROWS = sorted(RunConfig.model_fields.keys() - OF_ALL - {*NO_ROW_OF_ITS_OWN})
"""Settings that make two rows. A new option is one of them, unless it is named above or in OF_ALL."""

_requested: Callable[[RunConfig], Key] = attrgetter(*MAKE_ROWS)


def variant(record: Record) -> Key:
    """Return what makes two records two rows and not two tries of one."""
    # Up to format 3 this was not recorded, and there was no other way.
    joined = record.joined or ("ddp" if record.what.world_size > 1 else "none")
    return (*_asked(record), record.execution, record.attention, joined, _work(record))


def _asked(record: Record) -> Key:
    what, config = record.what, record.config
    settings = _requested(config) if config is not None else ()
    return (*_mode(record), what.workload, what.batch_size, what.world_size, *settings)


def planned(record: Record) -> Key:
    """Return what is known of any run before it starts: the mode on its instance, what it trains, and with what."""
    # `auto` chooses the same on machines that are the same.
    return (*_asked(record), record.config is not None and record.config.parallel == "fsdp")


def _mode(record: Record) -> Key:
    switches = record.config.te_switches if record.config is not None else None
    return record.instance, record.what.mode, record.what.recipe, switches


def system(record: RecordHead) -> Key:
    """Return the machine and the software, which rounds of one row have in common. Unknown ones are equal."""
    software = software_of(record.environment, record.talks)
    return record.machine.id if record.machine else None, None if software is None else frozenset(software.items())


def not_comparable(record: RecordHead, reference: RecordHead, under_test: Collection[str] = ()) -> list[str]:
    """Return what bars a verdict on two measurements of ONE instance. under_test: software that may differ."""
    if record.instance != reference.instance or {record.source, reference.source} != {"measured"}:
        return []
    talk = record.talks and reference.talks
    mine, theirs = software_of(record.environment, talk), software_of(reference.environment, talk)
    found = differences(mine, theirs, (RELEASE, *under_test))
    if not same_machine(record.machine, reference.machine):
        found.insert(0, f"machine ({record.machine or 'unknown'}, reference {reference.machine or 'unknown'})")
    return found


def unlike_software(record: RecordHead, reference: RecordHead) -> list[str]:
    """Return differences that are only shown: of one instance fp8bench's release, of two all but the hardware."""
    talk = record.talks and reference.talks
    mine, theirs = software_of(record.environment, talk), software_of(reference.environment, talk)
    if {record.source, reference.source} != {"measured"} or mine is None or theirs is None:
        return []
    if record.instance == reference.instance:
        return differences({RELEASE: mine[RELEASE]}, {RELEASE: theirs[RELEASE]})
    # Without a GPU on one side alone they are not comparable at all.
    return differences(mine, theirs, HARDWARE) if (mine["GPU"] is None) == (theirs["GPU"] is None) else []


def session(record: Record) -> str:
    """Return the session; a record without one is a session of its own."""
    return record.session.session_id if record.session else record.run_id


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Group]) -> dict[_Group, list[_Item]]:
    """Return the items grouped by key, in the order of each group's first one."""
    found: dict[_Group, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def latest_first(records: Iterable[Record]) -> list[list[Record]]:
    """Return records, oldest first, grouped by session, the one with the latest record first."""
    return sorted(grouped(records, session).values(), key=lambda together: together[-1].created_utc, reverse=True)


def select(records: Sequence[Record], every: bool, wanted: Filter = ALL) -> list[Measurement]:
    """Return the latest session's rounds of each variant, machine and software, or with `every` each record by itself.
    records: oldest first. What was not measured stands in for an instance only while nothing of it was measured. A mode
    that was invalid in any round of the session is invalid.
    """
    chosen = wanted.of(records)
    if every:
        return [Measurement((record,)) for record in chosen]
    ok = Filter(status="ok").of(chosen)
    measured = {record.instance for record in ok if record.source == "measured"}
    latest = {(*variant(r), *system(r)): r for r in ok if r.source == "measured" or r.instance not in measured}
    sessions = grouped(chosen, session)
    found = [_with_its_rounds(record, sessions[session(record)]) for record in latest.values()]
    # Two variants of one session may both have been replaced by the invalid round.
    found = list({one.latest.run_id: one for one in found}.values())
    shown = {record.run_id for one in found for record in (*one.rounds, *one.stopped)}
    return [*found, *(Measurement((one,)) for one in _not_run_again(chosen) if one.run_id not in shown)]


def rounds_of(records: Sequence[Record], every: bool = False, wanted: Filter = ALL) -> list[Record]:
    """Return the rounds that `select` makes rows of, for `results.sound` to check them."""
    return [record for one in select(records, every, wanted) for record in one.rounds]


def _with_its_rounds(latest: Record, of_session: Iterable[Record]) -> Measurement:
    together = [record for record in of_session if same_machine(record.machine, latest.machine)]
    one_mode = latest.session is None or not latest.session.variants
    stopped = tuple(
        record
        for record in together
        if record.status != "ok"
        and (_mode(record), record.what.batch_size) == (_mode(latest), latest.what.batch_size)
        and (one_mode or record.config == latest.config)
        # A run that stopped early may not have recorded its software.
        and (record.environment is None or system(record) == system(latest))
    )
    if invalid := Filter(status="invalid").of(stopped):
        return Measurement((invalid[-1],))
    row = variant(latest), system(latest)
    alike = [record for record in together if record.status == "ok" and (variant(record), system(record)) == row]
    rounds = [record for record in alike if same_code(record, latest)]
    of_other_code = len(alike) - len(rounds)
    return Measurement(tuple(rounds), stopped, of_other_code=of_other_code, missing=_missing(latest, together))


def _missing(latest: Record, together: Iterable[Record]) -> tuple[int, ...]:
    """Return the numbers up to the latest round's that no round of its configuration has, whatever became of it: what
    stopped is run again under its own number.
    """
    if latest.session is None:
        return ()
    places = [one.session for one in together if one.session and one.config == latest.config]
    numbers = {place.round for place in places if place.arm == latest.session.arm}
    return tuple(number for number in range(1, max(numbers)) if number not in numbers)


def same_code(record: Record, other: Record) -> bool:
    """Return whether two rounds of one configuration ran the same code, as far as known. That of fp8bench's own modes
    and workloads is told by its release, since the digests of older records differ where nothing else does.
    """
    mine, theirs = (one.parity.depends_on if one.parity else None for one in (record, other))
    if mine == theirs or None in (mine, theirs) or record.config != other.config:
        return True
    return not registry.from_outside(record.what.mode, record.what.workload)


def latest_alike(records: Sequence[SomeRecord]) -> list[SomeRecord]:
    """Return the latest of each instance, machine, software and fingerprint. records: of one kind, oldest first."""
    return list({(record.instance, *system(record), _work(record)): record for record in records}.values())


def in_order(records: Iterable[SomeRecord], instances: Sequence[str]) -> list[SomeRecord]:
    """Return records by instance in this order, each one's oldest first. Raises ValueError for any other instance."""
    return sorted(records, key=lambda record: (instances.index(record.instance), record.created_utc))


def same_work(records: Iterable[SomeRecord]) -> list[list[SomeRecord]]:
    return list(grouped(records, _work).values())


def _work(record: RecordHead) -> str:
    return json.dumps(record.fingerprint, sort_keys=True)


def execution(record: Record) -> Variant | None:
    found, *others = variants(record)
    return None if others else found


def variants(record: Record) -> frozenset[Variant]:
    """Return how its steps were, or would have been, executed: one variant if known, else all that are possible."""
    config, evidence = record.config, record.evidence
    if record.status == "ok" or config is None:
        return frozenset(VARIANTS if record.execution is None else (record.execution,))
    may_be = variants_of(config.compile, config.cuda_graphs, config.device == "cuda")
    if evidence is None:
        return frozenset(may_be)
    # Whether to compile is decided before anything can stop a run that has evidence; whether to replay, later.
    scope = evidence.compile.scope if evidence.compile.enabled else None
    launches = (False, True) if evidence.graph is None else (evidence.graph.enabled,)
    known = {variant_of(scope, graphed) for graphed in launches} & set(may_be)
    return frozenset(known or may_be)


def _not_run_again(records: Sequence[Record]) -> list[Record]:
    later: dict[Key, list[Record]] = {}
    found: list[Record] = []
    for record in reversed([one for one in records if one.config is not None]):
        after = later.setdefault(planned(record), [])
        if record.status != "ok" and not any(_same_variant(record, other) for other in after):
            found.append(record)
        after.append(record)
    return found[::-1]


def _same_variant(record: Record, other: Record) -> bool:
    mine, theirs = record.config, other.config
    if mine is None or theirs is None or not same_machine(record.machine, other.machine):
        return False
    attention = mine.te_attention == theirs.te_attention
    if not attention and (record.attention is None or record.attention != other.attention):
        return False
    alike = (mine.compile, mine.cuda_graphs) == (theirs.compile, theirs.cuda_graphs)
    return alike or (execution(record) is not None and execution(record) == execution(other))
