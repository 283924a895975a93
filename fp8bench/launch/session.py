"""Runs a session: round after round, each record kept as soon as it exists, so that no later event can lose it."""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fp8bench.config.request import RunRequest
from fp8bench.launch import batch_size
from fp8bench.launch.assemble import assemble, log_of, new_session_id, phases
from fp8bench.launch.plan import Entry, Schedule
from fp8bench.launch.prepare import Prepared, find_session, marks, refuse_unlike, requested_modes
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor, Watch
from fp8bench.launch.recipes import words_of
from fp8bench.launch.signals import exit_code, held_back
from fp8bench.records import results
from fp8bench.records.files import Broken, held
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, Status
from fp8bench.schema.private import fit
from fp8bench.schema.rank import Ceilings, RankReport
from fp8bench.schema.record import Record, Session
from fp8bench.stats.certainty import LOOKS, OUTSIDE
from fp8bench.worker.progress import Progress

Begins = Callable[[Entry, Session], Watch]
"""Called when a turn begins; the returned function is called with the turn's progress."""


class Turned(NamedTuple):
    entry: Entry
    record: Record
    path: Path


@contextmanager
def session(prepared: Prepared, warn: Callable[[str], None]) -> Iterator[Schedule]:
    """Yield the rounds of this call (see `schedule`); meanwhile no other call can run the same session."""
    name, remedy = prepared.request.session, "Wait until it ends, or choose another name with --session"
    path = prepared.results_dir / prepared.instance.key / f".session-{name}.lock"
    with nullcontext() if name is None else held(path, f"session {name!r}", remedy, warn):
        yield schedule(prepared, warn)


def schedule(prepared: Prepared, warn: Callable[[str], None] = lambda _line: None) -> Schedule:
    """Return the rounds of this call. A record that cannot be read is told, and its round is run again."""
    if prepared.request.session is None:
        return Schedule(prepared.entries, prepared.stop, new_session_id(datetime.now(UTC)))
    # Read again, because another call may have added records between `prepare` and the lock.
    found = results.read(prepared.results_dir, [prepared.instance.key])
    kept = find_session(prepared.request.session, prepared, (record for record, _ in found))
    refuse_unlike(kept, prepared.request, [entry.config for entry in prepared.entries])
    mine = {record.run_id for record in kept.records}
    of_session = results.Found((one for one in found if one.record.run_id in mine), found.broken)
    broken = list[Broken]()
    rounds = Schedule(prepared.entries, prepared.stop, kept.session_id, searches=dict(prepared.searches))
    rounds.restore(results.sound(of_session, broken.extend, list))
    for one in broken:
        warn(f"warning: {one.told}")
    return rounds


def measure(
    prepared: Prepared,
    rounds: Schedule,
    begins: Begins,
    traces: Mapping[str, Path] | None = None,
    say: Callable[[str], None] = lambda _line: None,
    since_s: float | None = None,
    executor: Executor | None = None,
    undecided: Callable[[int], bool] | None = None,
    floor: bool = False,
) -> Iterator[Turned]:
    """Run every turn of `rounds`, after the batch sizes that are yet to be found: a mode without one keeps the record
    that says why. undecided: asked at each look, with the rounds of this call, whether to go on. floor: measure the
    ceilings first that records are judged by.
    """
    since_s = time.monotonic() if since_s is None else since_s
    stop, variants = prepared.stop, prepared.request.variants
    looks = stop.looks or undecided is not None
    if undecided is not None:
        # The check decides, and not the session's own baseline.
        rounds.stop = replace(stop, looks=False, outside=OUTSIDE)
    rounds.asked = {
        "rounds": None if looks else stop.rounds,
        "precision": stop.precision,
        "max_rounds": stop.max_rounds if stop.precision is not None or looks else None,
        "looks": tuple(look for look in LOOKS if look <= stop.max_rounds) if looks else (),
        "variants": variants,
        "modes": () if variants else requested_modes(entry.config for entry in prepared.entries),
    }
    with executor or Executor() as executor:
        for entry, stopped in batch_size.find_sizes(prepared, rounds, executor, say) if prepared.to_size else ():
            record = stopped.model_copy(update={"session": rounds.place(entry, 1, 1)})
            yield Turned(entry, record, results.write(record, prepared.results_dir))
        if rounds.entries:
            ceilings = _ceilings(prepared, rounds, executor, say) if floor else {}
            yield from run_rounds(prepared, rounds, executor, begins, traces or {}, since_s, undecided, ceilings)


def run_rounds(
    prepared: Prepared,
    schedule: Schedule,
    executor: Executor,
    begins: Begins,
    traces: Mapping[str, Path],
    since_s: float,
    undecided: Callable[[int], bool] | None = None,
    ceilings: Mapping[object, Ceilings] | None = None,
) -> Iterator[Turned]:
    """Yield each turn once its record is kept, also if a signal came after its last timed step. traces: paths of the
    first round's, by label. since_s: when the command began, monotonic. Raises Interrupted, with no worker left.
    """
    first = number = schedule.first_round
    while schedule.goes_on(number) or (undecided and undecided(number - first) and schedule.one_more(number)):
        for entry, place in schedule.round(number):
            trace = traces.get(entry.label) if number == first else None
            kept: tuple[Record, Path] | None = None
            interrupted: KeyboardInterrupt | None = None
            reports: Sequence[RankReport] = ()
            found: tuple[str, ...] = ()
            begun_s, seen = since_s, list[Progress]()
            try:
                executor.require_ready()
                found = marks(prepared, entry.config)
                watch = begins(entry, place)
                begun_s = time.monotonic()
                earlier, timeout_s = schedule.parities.get(entry.config), prepared.request.timeout_s
                given = {} if earlier is None else {"earlier": earlier.model_dump(mode="json")}
                task = Task(config=entry.config, given=given, trace=trace, place=place, timeout_s=timeout_s)

                def noted(progress: Progress, watch: Watch = watch, seen: list[Progress] = seen) -> None:
                    seen[:] = [progress]
                    watch(progress)

                reports = executor.run(task, noted)
            except KeyboardInterrupt as interrupt:
                interrupted, reports = interrupt, getattr(interrupt, "reports", ())
            ended_s = time.monotonic()
            try:
                with held_back():
                    if reports:
                        key, now = prepared.instance.key, datetime.now(UTC)
                        record = assemble(entry.config, reports, key, now, place, found, prepared.machine)
                        written_s = time.monotonic()
                        took_s = phases(since_s, begun_s, seen[-1] if seen else None, ended_s, written_s)
                        more = {"phases_s": took_s, "ceilings": (ceilings or {}).get(_work(entry.config))}
                        record, since_s = record.model_copy(update=more), written_s
                        kept = written(record, reports, prepared.results_dir)
            except KeyboardInterrupt as interrupt:
                interrupted = interrupted or interrupt
            if kept is not None:
                schedule.take(entry, kept[0])
                yield Turned(entry, *kept)
            if interrupted is not None:
                ran, too = f"interrupted while {entry.label} ran", ", and its record is kept" if kept else ""
                what, remedy = f"{ran}; its workers have ended{too}", _how_to_resume(schedule, prepared)
                raise Interrupted(what, remedy, exit_code(interrupted)) from interrupted
        number += 1


def _work(config: RunConfig) -> object:
    """Return what ceilings depend on, besides the machine."""
    return config.model_dump_json(
        include={"workload", "batch_size", "world_size", "sequence_length", "image_size", "classes"}
    )


def _ceilings(
    prepared: Prepared, schedule: Schedule, executor: Executor, say: Callable[[str], None]
) -> dict[object, Ceilings]:
    """Return what the GPU reaches at best for each work of the session. What fails costs the floor and nothing else."""
    found: dict[object, Ceilings] = {}
    for config in {_work(entry.config): entry.config for entry in schedule.entries}.values():
        task = Task(config=config, target="fp8bench.worker.ceilings:measure", timeout_s=prepared.request.timeout_s)
        first = executor.run(task, lambda _progress: None)[0]
        if first.found is None:
            say(f"warning: no ceilings, so no floor: {first.reason}")
        else:
            found[_work(config)] = Ceilings.model_validate(first.found)
    return found


def _how_to_resume(schedule: Schedule, prepared: Prepared) -> str:
    untried = schedule.untried
    if len(untried) == len(schedule.entries):
        # Without kept records the session has no settings to resume with.
        return "Nothing was finished before it: run the same command again"
    # A session whose records are all of earlier calls may not know a mode that this call has added.
    configs = [] if not untried or prepared.request.variants else [entry.config for entry in schedule.entries]
    folder = prepared.results_dir
    given = {
        "--instance": [prepared.named] if prepared.named else [],
        "--session": [schedule.session_id],
        "--mode": dict.fromkeys(config.mode_label for config in configs),
        "--te-switch": words_of(configs),
        "--results-dir": [] if folder == RunRequest.model_fields["results_dir"].default else [str(folder)],
    }
    words = [word for flag, values in given.items() for value in values for word in (flag, value)]
    return f"What was finished before it is in {folder}; resume with `{shlex.join(['fp8bench', 'run', *words])}`"


def written(record: Record, reports: Sequence[RankReport], results_dir: Path) -> tuple[Record, Path]:
    """Write the record and, if it failed, what its ranks left behind, which the remedy then names."""
    log = log_of(reports) if record.status == "failed" else ""
    if log and (logged := results.write_log(record, log, results_dir)):
        record = record.model_copy(update={"remedy": f"{record.remedy}; tracebacks and stacks are in {logged}"})
    record = fit(record)
    return record, results.write(record, results_dir)


def exit_code_of(statuses: Iterable[Status], named: bool = False) -> int:
    """Return 5 (broke), 4 (invalid), 3 (cannot run here) or 0. Modes that nobody named count if none could run."""
    found = set(statuses)
    unsupported = found == {"unsupported"} or (named and "unsupported" in found)
    return 5 if "failed" in found else 4 if "invalid" in found else 3 if unsupported else 0
