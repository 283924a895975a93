"""Decides which mode runs when (rounds of fresh processes, interleaved in balanced order) and when to stop. Pure.

    round 1: A B C D    round 2: D C B A    round 3: A B C D    ...

In this order, a host that grows hot or slow over an hour affects every mode equally. One process is not a measurement:
the same mode took 126 ms a step in one process and 100 ms in the next on the same GPU.

If no number of rounds is requested, the session is looked at after 3, 6, 10, 14, 20 and 30 of them. A mode ends at the
look at which it is told from the baseline, or known to a percent; the baseline goes on with those that are left. If a
precision is requested, all modes go on together until the interval of each is narrow enough (`stats.certainty`), up to
a last round. A mode that stopped (unsupported here, invalid, broken) is not run again and delays none of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fp8bench.config.request import MAX_ROUNDS
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.rank import Parity
from fp8bench.schema.record import Record, Session
from fp8bench.stats.certainty import LOOKS, next_look, reached
from fp8bench.stats.estimate import OF_ONE_LOOK, Estimate, estimate
from fp8bench.stats.ratio import FEWEST_PROCESSES, Ratio, SelfCheck, differ, ratio, self_check, settled
from fp8bench.stats.steps import step_times

Arm = Literal["A", "B"]
ARMS: tuple[Arm, Arm] = ("A", "B")
BASELINE = "baseline-bf16"


@dataclass(frozen=True)
class Entry:
    """What is measured in every round. arm: of a mode compared with itself. note: what tells variants apart."""

    config: RunConfig
    arm: Arm | None = None
    note: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The mode's name with its note: `te-fp8:delayed (batch 128)`."""
        return f"{self.config.switched_label} ({self.note})" if self.note else self.config.switched_label

    @property
    def label(self) -> str:
        return f"{self.name} {self.arm}" if self.arm else self.name


@dataclass(frozen=True)
class Stop:
    """When a session ends. rounds: the smallest number. precision: half-width of every mode's interval divided by its
    middle at which the session ends; None to end after `rounds`. max_rounds: the largest number. looks: whether each
    mode ends at the look at which it is told from the baseline. outside: see `Estimate`.
    """

    rounds: int
    precision: float | None = None
    max_rounds: int = MAX_ROUNDS
    looks: bool = False
    outside: float = OF_ONE_LOOK

    @property
    def most(self) -> int:
        return self.rounds if self.precision is None and not self.looks else max(self.rounds, self.max_rounds)


@dataclass
class Schedule:
    """The rounds still to run, given what has been measured. asked: fields of each record's `Session`, as requested.
    searches: how batch sizes were found. parities: measured by a process of this session: later ones may rely on them.
    """

    entries: Sequence[Entry]
    stop: Stop
    session_id: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    searches: dict[RunConfig, BatchSearch] = field(default_factory=dict)
    parities: dict[RunConfig, Parity] = field(default_factory=dict)
    _times: dict[Entry, list[float]] = field(default_factory=dict)
    _stopped: set[Entry] = field(default_factory=set)
    _variants: dict[RunConfig, set[Variant]] = field(default_factory=dict)
    _work: dict[Entry, object] = field(default_factory=dict)

    def restore(self, records: Iterable[Record]) -> None:
        """Count earlier rounds that are `ok` and of the same configuration; what stopped then is tried again."""
        for record in records:
            arm = record.session.arm if record.session else None
            for entry in self.entries:
                if record.status == "ok" and (record.config, arm) == (entry.config, entry.arm):
                    self.take(entry, record)

    @property
    def first_round(self) -> int:
        """The earliest round that some entry has not run yet."""
        return min(map(self._done, self.entries)) + 1

    def goes_on(self, number: int) -> bool:
        """Return whether anything is left to run in round `number` or later."""
        return any(self._wants(entry, max(number, self._done(entry) + 1)) for entry in self.entries)

    def one_more(self, number: int) -> bool:
        """Request the rounds from `number` to the next look, up to the largest; return whether any is left to run."""
        self.stop = replace(self.stop, rounds=max(self.stop.rounds, min(next_look(number), self.stop.max_rounds)))
        return self.goes_on(number)

    def round(self, number: int) -> list[tuple[Entry, Session]]:
        """Return the entries of round `number` (from 1) in order, if any is left. Ask for the rounds in sequence."""
        ordered = [entry for entry in self.entries[:: 1 if number % 2 else -1] if self._wants(entry, number)]
        return [(entry, self.place(entry, number, position)) for position, entry in enumerate(ordered, start=1)]

    def place(self, entry: Entry, number: int, position: int) -> Session:
        place = Session(session_id=self.session_id, round=number, position=position, arm=entry.arm)
        return place.model_copy(update={**self.asked, "batch_search": self.searches.get(entry.config)})

    def take(self, entry: Entry, record: Record) -> None:
        if record.status != "ok":
            self._stopped.add(entry)
        elif times := step_times(record):
            self._times.setdefault(entry, []).append(times.mean_s)
            if record.execution is not None:
                self._variants.setdefault(entry.config, set()).add(record.execution)
            self._work[entry] = record.fingerprint, entry.config.batch_size, entry.config.world_size
            if record.parity is not None and record.parity.of_run is None:
                # The latest: what it depends on may have changed since an earlier call.
                self.parities[entry.config] = record.parity.model_copy(update={"of_run": record.run_id})

    @property
    def untried(self) -> list[Entry]:
        """Entries without any result so far, in this call or before."""
        return [entry for entry in self.entries if entry not in self._stopped and not self._done(entry)]

    def estimate(self, entry: Entry) -> Estimate | None:
        """Return the entry's step time over the rounds so far, in seconds."""
        return estimate(self._times[entry], self.stop.outside) if entry in self._times else None

    def precise(self) -> bool:
        """Return whether every mode that can run has reached the requested precision; True if none was requested."""
        running = [entry for entry in self.entries if entry not in self._stopped]
        return self.stop.precision is None or reached(list(map(self.estimate, running)), self.stop.precision)

    def self_check(self) -> SelfCheck | None:
        """Return the check over all splits of the processes of each mode; None if one has too few."""
        pooled: dict[RunConfig, list[float]] = {}
        for entry in self.entries:
            if entry in self._times:
                pooled.setdefault(entry.config, []).extend(self._times[entry])
        even = [processes[: len(processes) // 2 * 2] for processes in pooled.values()]
        if len(pooled) < len({entry.config for entry in self.entries}) or min(map(len, even)) < FEWEST_PROCESSES:
            return None
        return self_check(even, differ)

    def arms_compared(self) -> list[tuple[str, Ratio]]:
        """Return the label of each mode that is compared with itself, and the ratio of arm B to arm A."""
        found = []
        for first, second in zip(self.entries[::2], self.entries[1::2], strict=False):
            a, b = self.estimate(first), self.estimate(second)
            if first.arm and a is not None and b is not None:
                # With every variant that ran: comparing two executions compares no mode with itself.
                label, note = first.config.switched_label, f" ({first.note})" if first.note else ""
                ran = [f"{label}{suffix(variant)}{note}" for variant in sorted(self._variants.get(first.config, ()))]
                found.append((" and ".join(ran or [first.name]), ratio(b, a)))
        return found

    def _done(self, entry: Entry) -> int:
        return len(self._times.get(entry, []))

    def _wants(self, entry: Entry, number: int) -> bool:
        if entry in self._stopped or self._done(entry) >= number:
            return False
        if number <= self.stop.rounds:
            return True
        if number > self.stop.most:
            return False
        return number <= self._needed(entry) if self.stop.looks else not self.precise()

    def _needed(self, entry: Entry) -> int:
        """Return how many rounds the entry needs as far as known: a baseline as many as those compared with it."""
        others = [one for one in self.entries if one not in self._stopped and self._base(one) == entry]
        if others:
            return max(map(self._needed, others))
        found = (look for look in LOOKS if self._done(entry) < look or self._settled(entry, look))
        return next(found, self.stop.most)

    def _settled(self, entry: Entry, look: int) -> bool:
        """Return whether the first `look` rounds tell the entry from its baseline, or give its time to NOISE."""
        base = self._base(entry)
        mine = estimate(self._times[entry][:look], self.stop.outside)
        return settled(mine, None if base is None else estimate(self._times[base][:look], self.stop.outside))

    def _base(self, entry: Entry) -> Entry | None:
        """Return the first entry of the baseline's mode that does the same work and can run; None for itself."""
        alike = (one for one in self._work if one.config.mode == BASELINE and self._work[one] == self._work.get(entry))
        found = next(alike, None)
        return None if found == entry else found
