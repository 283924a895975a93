"""A session: round after round, each record kept as soon as it is there, so that what follows can lose nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from fp8bench.launch.assemble import assemble, log_of, new_run_id
from fp8bench.launch.executor import Executor, Watch
from fp8bench.launch.interrupts import exit_code as exit_code_after
from fp8bench.launch.rounds import Entry, Schedule
from fp8bench.records import results
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.record import Record, Session, Status


class Listener(Protocol):
    """Who is told how the session goes."""

    def begins(self, entry: Entry, place: Session) -> Watch:
        """A turn begins; the returned function is called with its progress."""

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None:
        """A turn ended, and its record is kept at `path`."""


@dataclass(frozen=True)
class Where:
    """What every record of a session has in common. marks: given a configuration, what a reader must be told of all
    its runs (a busy GPU); raises ModeUnavailable where it should not run at all. traces: labels of entries whose first
    round keeps its Chrome trace, and where. machine: this one. asked: of the session, as `Session` has it.
    """

    instance: str
    results_dir: Path
    marks: Callable[[RunConfig], tuple[str, ...]] = lambda _config: ()
    traces: Mapping[str, Path] | None = None
    machine: MachineIdentity | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)


def measure_all(
    schedule: Schedule, executor: Executor, where: Where, listener: Listener
) -> Iterator[tuple[Record, Path]]:
    """Yield each record with the path where it is kept; none on a rank that keeps none.

    Raises Interrupted after Ctrl-C, SIGTERM or SIGHUP, when every worker has ended.
    """
    first = number = schedule.first_round
    while schedule.goes_on(number):
        for entry, turn in schedule.round(number):
            place = turn.model_copy(update=dict(where.asked))
            try:
                marks = where.marks(entry.config)
                trace = (where.traces or {}).get(entry.label) if number == first else None
                watch = listener.begins(entry, place)
                reports = executor.run(entry.config, watch, trace, marks)
                if reports is None:
                    continue
                now = datetime.now(UTC)
                run_id = new_run_id(entry.config.mode_label, now)
                record = assemble(entry.config, reports, where.instance, run_id, now, place, marks, where.machine)
                record, path = _keep(record, log_of(reports), where.results_dir)
            except KeyboardInterrupt as interrupt:
                raise Interrupted(
                    f"interrupted while {entry.label} ran; its workers have ended",
                    f"What was finished before it is in {where.results_dir}; resume with "
                    f"`fp8bench run --session {schedule.session_id}`",
                    exit_code_after(interrupt),
                ) from interrupt
            schedule.take(entry, record)
            listener.ended(entry, place, record, path)
            yield record, path
        number += 1


def _keep(record: Record, log: str, results_dir: Path) -> tuple[Record, Path]:
    """Write the record, and beside it what its ranks left behind where it failed; its remedy names that file."""
    if record.status == "failed" and log:
        logged = results.write_log(record, log, results_dir)
        if logged is not None:
            record = record.model_copy(update={"remedy": f"{record.remedy}; tracebacks and stacks are in {logged}"})
    return record, results.write(record, results_dir)


def exit_code(records: Sequence[Record], named: bool = False) -> int:
    """Of a call that made these records; see `exit_code_of`."""
    return exit_code_of((record.status for record in records), named)


def exit_code_of(statuses: Iterable[Status], named: bool = False) -> int:
    """5 if anything broke, else 4 if a measurement is invalid, else 3 if a mode could not run here, else 0. Nothing: 0.

    named: the modes were, so that one that could not run counts also beside others that did; of a machine's default
    modes only when none could.
    """
    found = set(statuses)
    if "failed" in found:
        return 5
    if "invalid" in found:
        return 4
    return 3 if found == {"unsupported"} or (named and "unsupported" in found) else 0
