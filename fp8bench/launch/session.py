"""Runs a session: round after round, each record kept as soon as it exists, so that no later event can lose it."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from fp8bench.launch import resume, sizing
from fp8bench.launch.assemble import assemble, log_of, new_run_id, new_session_id
from fp8bench.launch.following import Following, spawning
from fp8bench.launch.phases import Timing
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.rounds import Entry, Schedule
from fp8bench.launch.signals import exit_code as exit_code_after
from fp8bench.launch.signals import held_back
from fp8bench.launch.switched import words_of
from fp8bench.machine.busy import require_idle
from fp8bench.machine.checkout import git_state
from fp8bench.machine.identity import Here
from fp8bench.records import lock, results
from fp8bench.records.files import Broken
from fp8bench.records.fit import fit
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, Status
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Record, Session


class Listener(Protocol):
    """Listens to the progress of a session."""

    def begins(self, entry: Entry, place: Session) -> Watch:
        """Called when a turn begins; the returned function is called with the turn's progress."""

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None:
        """Called when a turn has ended and its record is kept at `path`."""


@dataclass(frozen=True)
class Where:
    """What all records of a session have in common. marks: returns what a reader must know of all runs of a
    configuration (e.g. a busy GPU); raises ModeUnavailable if it should not run at all. traces: paths for the Chrome
    traces of the first round, by the label of the entry. machine: this machine. asked: fields of the record's `Session`
    as requested. named: the instance as the user named it; None if they named none. searches: of configurations whose
    batch size was found.
    """

    instance: str
    results_dir: Path
    marks: Callable[[RunConfig], tuple[str, ...]] = lambda _config: ()
    traces: Mapping[str, Path] | None = None
    machine: MachineIdentity | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    named: str | None = None
    searches: Mapping[RunConfig, BatchSearch] = field(default_factory=dict)


@contextmanager
def session(prepared: Prepared, warn: Callable[[str], None]) -> Iterator[Schedule]:
    """Return the rounds of this call; while they run, no other call can run the same session.

    warn: called if that cannot be ensured. Raises UsageError if another call runs the session, and as `schedule` does.
    """
    if prepared.session is None:
        yield schedule(prepared, warn)
        return
    path = prepared.results_dir / prepared.instance.key / f".session-{prepared.session}.lock"
    remedy = "Wait until it ends, or choose another name with --session"
    with lock.held(path, f"session {prepared.session!r}", remedy, warn):
        yield schedule(prepared, warn)


def schedule(prepared: Prepared, warn: Callable[[str], None] = lambda _line: None) -> Schedule:
    """Return the rounds of this call: those of a new session, or those that the named session still lacks.

    warn: called with records that cannot be read; they do not count, and their rounds are run again.

    Raises UsageError if `latest` was requested and there is none, and if what is kept of the session is not of this
    machine, its software and these settings.
    """
    if prepared.session is None:
        return Schedule(prepared.entries, prepared.stop, new_session_id(datetime.now(UTC)))
    found = results.read(prepared.results_dir, [prepared.instance.key])
    # Read again, because another call may have added records between `prepare` and the lock.
    where = f"of {prepared.instance.key!r} is kept in {prepared.results_dir}"
    records, here = [record for record, _ in found], prepared.here or Here(one=False)
    kept = resume.find(prepared.session, records, here, where, git_state())
    sized = [entry.config for entry in prepared.entries if entry.config not in prepared.to_size]
    aa = prepared.entries[0].arm is not None
    resume.refuse_unlike(kept, sized, aa, prepared.variants, prepared.to_size)
    rounds = Schedule(prepared.entries, prepared.stop, kept.session_id)
    mine = {record.run_id for record in kept.records}

    def unread(broken: Sequence[Broken]) -> None:
        for one in broken:
            warn(f"warning: {one.told}")

    left = results.sound(found, unread, lambda some: [record for record in some if record.run_id in mine])
    rounds.restore(record for record in left if record.run_id in mine)
    return rounds


def measure(
    prepared: Prepared,
    rounds: Schedule,
    listener: Listener,
    traces: Mapping[str, Path] | None = None,
    say: Callable[[str], None] = lambda _line: None,
    since_s: float | None = None,
) -> Iterator[tuple[Record, Path]]:
    """Run every turn of `rounds`, after the batch sizes that are yet to be found. say: takes a line about each size
    that is tried. since_s: when the command began, by the monotonic clock; None: now. See `measure_all` for what it
    yields and raises.
    """
    leader = prepared.leader

    def marks(config: RunConfig) -> tuple[str, ...]:
        if leader is not None:
            leader.require_all()
        return require_idle(os.environ, None, prepared.allow_busy) if config.device == "cuda" else ()

    stop = prepared.stop
    asked = {
        **resume.asked_for(stop.rounds, stop.precision, stop.max_rounds),
        "variants": prepared.variants,
        "modes": () if prepared.variants else resume.requested_modes(entry.config for entry in prepared.entries),
    }
    machine = prepared.here.machine if prepared.here else None
    where = Where(
        prepared.instance.key,
        prepared.results_dir,
        marks,
        traces,
        machine,
        asked,
        prepared.named,
        prepared.searches,
    )
    since_s = time.monotonic() if since_s is None else since_s
    executor = _executor(prepared)
    if leader is not None:
        listener = leader.hearing(listener)
    if prepared.to_size:
        return _sized_then_measured(prepared, rounds, executor, where, listener, say, since_s)
    return measure_all(rounds, executor, where, listener, since_s)


def _sized_then_measured(
    prepared: Prepared,
    rounds: Schedule,
    executor: Executor,
    where: Where,
    listener: Listener,
    say: Callable[[str], None],
    since_s: float,
) -> Iterator[tuple[Record, Path]]:
    """Find the batch sizes, then run the rounds. A mode for which none is found keeps the record that says why."""
    searches = dict(where.searches)
    with Following(executor) as following:
        following.expect(prepared.entries[0].config)
        for entry, found in sizing.find_sizes(prepared, rounds, executor, where, say):
            if found.config is not None:
                searches[found.config] = found.search
            elif found.stopped is not None and found.stopped.session is not None:
                path = results.write(found.stopped, where.results_dir)
                listener.ended(entry, found.stopped.session, found.stopped, path)
                yield found.stopped, path
        if rounds.entries:
            yield from measure_all(rounds, executor, replace(where, searches=searches), listener, since_s)


def _executor(prepared: Prepared) -> Executor:
    # torch's profiler writes to every rank's standard error, in the middle of the progress, unless this variable is set
    # before its first use.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return prepared.leader or spawning(prepared.entries[0].config.device, prepared.timeout_s)


def measure_all(
    schedule: Schedule, executor: Executor, where: Where, listener: Listener, since_s: float | None = None
) -> Iterator[tuple[Record, Path]]:
    """Yield each record with the path where it is kept. since_s: as in `measure`.

    Raises Interrupted after Ctrl-C, SIGTERM or SIGHUP, once every worker has ended.
    """
    first = number = schedule.first_round
    timing = Timing(time.monotonic() if since_s is None else since_s)
    with Following(executor) as following:
        while schedule.goes_on(number):
            turns = schedule.round(number)
            for position, (entry, turn) in enumerate(turns, start=1):
                later = turns[position:] or schedule.round(number + 1)
                following.expect(later[0][0].config if later else None)
                trace = (where.traces or {}).get(entry.label) if number == first else None
                yield from _turn(schedule, entry, turn, executor, where, listener, trace, timing)
            number += 1


def _turn(
    schedule: Schedule,
    entry: Entry,
    turn: Session,
    executor: Executor,
    where: Where,
    listener: Listener,
    trace: Path | None,
    timing: Timing,
) -> Iterator[tuple[Record, Path]]:
    """Yield the turn's record, also if its ranks were interrupted after their last timed step. Raises Interrupted."""
    search = where.searches.get(entry.config)
    place = turn.model_copy(update={**where.asked, "batch_search": search})
    kept: tuple[Record, Path] | None = None
    interrupted: KeyboardInterrupt | None = None
    reports: Sequence[RankReport] = ()
    marks: tuple[str, ...] = ()
    try:
        marks = where.marks(entry.config)
        watch = timing.begins(listener.begins(entry, place))
        reports = executor.run(entry.config, watch, trace, marks)
        timing.ranks_ended()
    except KeyboardInterrupt as interrupt:
        interrupted, reports = interrupt, getattr(interrupt, "reports", ())
    try:
        with held_back():
            kept = _keep(entry, place, reports, where, marks, timing) if reports else None
    except KeyboardInterrupt as interrupt:
        interrupted = interrupted or interrupt
    if kept is not None:
        schedule.take(entry, kept[0])
        listener.ended(entry, place, *kept)
        yield kept
    if interrupted is not None:
        raise Interrupted(
            f"interrupted while {entry.label} ran; its workers have ended{', and its record is kept' if kept else ''}",
            _how_to_resume(schedule, where),
            exit_code_after(interrupted),
        ) from interrupted


def _how_to_resume(schedule: Schedule, where: Where) -> str:
    """Return advice with the complete command. A session without kept records has no settings to resume with, and one
    whose records are all of earlier calls may not know a mode that this call has added.
    """
    untried = schedule.untried
    if len(untried) == len(schedule.entries):
        return "Nothing was finished before it: run the same command again"
    brings_all = not untried or where.asked.get("variants")
    entries = () if brings_all else schedule.entries
    modes = dict.fromkeys(entry.config.mode_label for entry in entries)
    switches = words_of(entry.config for entry in entries)
    command = resume.command(schedule.session_id, where.named, where.results_dir, modes, switches)
    return f"What was finished before it is in {where.results_dir}; resume with `{command}`"


def _keep(
    entry: Entry, place: Session, reports: Sequence[RankReport], where: Where, marks: Sequence[str], timing: Timing
) -> tuple[Record, Path]:
    now = datetime.now(UTC)
    run_id = new_run_id(entry.config.switched_label, now)
    record = assemble(entry.config, reports, where.instance, run_id, now, place, marks, where.machine)
    return written(record.model_copy(update={"phases_s": timing.phases()}), reports, where.results_dir)


def written(record: Record, reports: Sequence[RankReport], results_dir: Path) -> tuple[Record, Path]:
    """Write the record and, if it failed, what its ranks left behind; the remedy then names that file. Return the
    record as written, and its path.
    """
    if record.status == "failed" and (log := log_of(reports)):
        logged = results.write_log(record, log, results_dir)
        if logged is not None:
            record = record.model_copy(update={"remedy": f"{record.remedy}; tracebacks and stacks are in {logged}"})
    record = fit(record)
    return record, results.write(record, results_dir)


def exit_code(records: Sequence[Record], named: bool = False) -> int:
    """Return the exit code of a call that made these records; see `exit_code_of`."""
    return exit_code_of((record.status for record in records), named)


def exit_code_of(statuses: Iterable[Status], named: bool = False) -> int:
    """Return 5 if anything broke, else 4 if a measurement is invalid, else 3 if a mode could not run here, else 0.
    Without statuses: 0.

    named: whether the user named the modes, so that a mode that could not run counts even if others ran; a machine's
    default modes count only if none could run.
    """
    found = set(statuses)
    if "failed" in found:
        return 5
    if "invalid" in found:
        return 4
    return 3 if found == {"unsupported"} or (named and "unsupported" in found) else 0
