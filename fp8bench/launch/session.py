"""Runs a session, round after round, or a sweep, turn after turn within its budget (see `halving`), in fresh processes:
each record is kept as soon as it exists, so that no later event can lose it.

A sweep's looks are kept apart (`looks_dir`): one of few steps is no measurement for a table to show. Its full rounds
are records of a session under its name. Called again under its name, it repeats nothing: its records tell what was
tried.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fp8bench.launch import batch_size
from fp8bench.launch.assemble import assemble, log_of, new_session_id, phases
from fp8bench.launch.forecast import AXES, MINUTE_S, Forecaster, duration
from fp8bench.launch.halving import MARGIN, Halving, Turn, Untried
from fp8bench.launch.plan import Entry, Schedule, Stop
from fp8bench.launch.prepare import (
    OTHER_SESSION,
    REQUESTED_AS,
    Prepared,
    find_session,
    marks,
    refuse_unlike,
    requested_modes,
)
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor, Watch
from fp8bench.launch.signals import exit_code, held_back
from fp8bench.machine.identity import Here
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.records import results
from fp8bench.records.files import Broken, held
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, Status, UsageError
from fp8bench.schema.option import flag_of
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
    trace: Path | None = None,
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
            yield from run_rounds(prepared, rounds, executor, begins, trace, since_s, undecided, ceilings)


def run_rounds(
    prepared: Prepared,
    schedule: Schedule,
    executor: Executor,
    begins: Begins,
    trace: Path | None,
    since_s: float,
    undecided: Callable[[int], bool] | None = None,
    ceilings: Mapping[object, Ceilings] | None = None,
) -> Iterator[Turned]:
    """Yield each turn once its record is kept, also if a signal came after its last timed step. trace: of the first
    turn of the first mode. since_s: when the command began, monotonic. Raises Interrupted, with no worker left.
    """
    first = number = schedule.first_round
    while schedule.goes_on(number) or (undecided and undecided(number - first) and schedule.one_more(number)):
        for entry, place in schedule.round(number):
            its_trace = trace if number == first and entry.label == prepared.entries[0].label else None
            kept: tuple[Record, Path] | None = None
            interrupted: KeyboardInterrupt | None = None
            reports: Sequence[RankReport] = ()
            seen = list[Progress]()
            try:
                executor.require_ready()
                found = marks(prepared, entry.config)
                watch = begins(entry, place)
                begun_s = time.monotonic()
                earlier, timeout_s = schedule.parities.get(entry.config), prepared.request.timeout_s
                given: dict[str, Any] = {} if earlier is None else {"earlier": earlier.model_dump(mode="json")}
                if entry.config in schedule.work:
                    given["work"] = schedule.work[entry.config]
                task = Task(config=entry.config, given=given, trace=its_trace, place=place, timeout_s=timeout_s)

                def noted(progress: Progress, watch: Watch = watch, seen: list[Progress] = seen) -> None:
                    seen[:] = [progress]
                    watch(progress)

                reports = executor.run(task, noted)
                refuse_other_work(reports, schedule.session_id)
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
                raise Interrupted(
                    f"{ran}; its workers have ended{too}",
                    f"What was finished is kept: run the same command with --session {schedule.session_id}",
                    exit_code(interrupted),
                ) from interrupted
        number += 1


def refuse_other_work(reports: Sequence[RankReport], session_id: str) -> None:
    """Raise UsageError if a rank found that it would not train what the session's earlier rounds did."""
    for unlike in (one.found["unlike"] for one in reports if one.found):
        what = f"session {session_id!r} was measured with {unlike}, and its rounds are one measurement"
        raise UsageError(what, f"Restore the file to resume it, or {OTHER_SESSION}")


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
    for work, config in {_work(entry.config): entry.config for entry in schedule.entries}.items():
        task = Task(config=config, target="fp8bench.worker.ceilings:measure", timeout_s=prepared.request.timeout_s)
        first = executor.run(task, lambda _progress: None)[0]
        if first.found is None:
            say(f"warning: no ceilings, so no floor: {first.reason}")
        else:
            found[work] = Ceilings.model_validate(first.found)
    return found


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


SWEEPS = ".sweeps"
"""A folder in the folder of results; hidden, so that no other command reads it."""

FREE = ("mode", *AXES, "te_switches")
"""Settings in which the configurations of one sweep differ."""

UNITS_S = {"s": 1, "min": MINUTE_S, "h": SECONDS_PER_HOUR}


class Budget(NamedTuple):
    """What a call may spend. text: as the user gave it. usd_per_hour: of the machine; None if unknown."""

    seconds: float
    text: str
    usd_per_hour: float | None

    def usd(self, seconds: float) -> float | None:
        return None if self.usd_per_hour is None else seconds / SECONDS_PER_HOUR * self.usd_per_hour

    @classmethod
    def parse(cls, text: str, usd_per_hour: float | None) -> "Budget":
        """Read `10min`, `600s`, `2h` or `2USD`. Raises UsageError for anything else, and for USD without a price."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
        if found is None or found[2] not in (*UNITS_S, "USD") or float(found[1]) == 0:
            raise UsageError(
                f"--budget: invalid value {text!r}: it is not a duration above 0 with a unit of time, nor an amount of "
                "USD",
                f"Give, for example, --budget 10min; units are {', '.join(UNITS_S)}, USD",
            )
        if found[2] in UNITS_S:
            return cls(float(found[1]) * UNITS_S[found[2]], text, usd_per_hour)
        if not usd_per_hour:
            what = f"--budget {text} needs the price of this machine, and none is known"
            raise UsageError(what, "Give it with --price, or give a time")
        return cls(float(found[1]) / usd_per_hour * SECONDS_PER_HOUR, text, usd_per_hour)


@dataclass(frozen=True)
class Sweep:
    """What is searched, and for how much. untried: what is not. halving: the search, before what records tell of it."""

    prepared: Prepared
    name: str
    halving: Halving
    untried: Untried
    budget: Budget

    @property
    def looks_dir(self) -> Path:
        return self.prepared.results_dir / SWEEPS / self.name


def latest_sweep(results_dir: Path) -> str:
    """Return the name of the sweep that was last worked on. Raises UsageError if there is none."""
    found = [path for path in (results_dir / SWEEPS).glob("*") if any(path.glob("*/*.json"))]
    if not found:
        raise UsageError(f"{results_dir} has no sweep that could be resumed", "Omit --session, or give --results-dir")
    return max(found, key=lambda path: path.stat().st_mtime).name


def begun(sweep: Sweep) -> Halving:
    """Return the search, with what records tell. Raises UsageError as `find_session` does, and for other work."""
    prepared, of_looks, of_rounds = sweep.prepared, dict[RunConfig, Record](), dict[RunConfig, list[Record]]()
    here, base, key = prepared.here or Here(), prepared.entries[0].config, prepared.instance.key
    looks, kept = ([one.record for one in results.read(of, [key])] for of in (sweep.looks_dir, prepared.results_dir))
    looked = {record.run_id for record in looks}
    for record in find_session(sweep.name, prepared, [*looks, *kept]).records:
        if record.config is None:
            continue
        config = record.config.model_copy(update={name: getattr(base, name) for name in sweep.halving.look})
        other = [one for one in RunConfig.model_fields if getattr(config, one) != getattr(base, one)]
        if changed := {REQUESTED_AS.get(of, of): of for of in other if of not in FREE}:
            said = [f"{flag_of(name)} {getattr(config, of)} (now {getattr(base, of)})" for name, of in changed.items()]
            remedy = "Give the same again, or choose another name with --session"
            raise UsageError(f"sweep {sweep.name!r} is of {', '.join(said)}", remedy)
        if record.run_id in looked:
            of_looks[config] = record
        elif record.config == config:
            of_rounds.setdefault(config, []).append(record)
    of_here = [record for record in kept if record.source == "measured" and not here.unlike(record)]
    forecaster = Forecaster([*of_here, *of_looks.values(), *chain.from_iterable(of_rounds.values())])
    return replace(sweep.halving, forecaster=forecaster, looks=of_looks, rounds=of_rounds)


def require_budget(sweep: Sweep) -> None:
    """Raise UsageError if no configuration could be looked at and measured once, and as `begun` does."""
    halving, budget = begun(sweep), sweep.budget
    turns_s = [halving.look_s(config) + halving.round_s(config) for config in halving.candidates]
    least_s = MARGIN * min(turns_s, default=0.0)
    if not halving.looks and budget.seconds < least_s:
        usd = f"{budget.usd(least_s):.2f} USD ({duration(least_s)})" if budget.text.endswith("USD") else ""
        what = f"a budget of {budget.text} is too small for one run: a look and a round take about "
        remedy = "Give at least that, or fewer --steps and a shorter --min-time"
        raise UsageError(what + (usd or duration(least_s)), remedy)


def run_sweep(
    sweep: Sweep,
    executor: Executor,
    begins: Callable[[Turn, float], Watch],
    ended: Callable[[Turn, Record, Halving], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Halving, float, int]:
    """Run turns until the sweep or its budget ends; return the search, and this call's seconds and turns."""
    began, turns = clock(), 0
    halving = begun(sweep)
    with executor:
        while (turn := halving.next_turn(spent_s := clock() - began)) is not None:
            expected_s = (halving.look_s if turn.stage == "look" else halving.round_s)(turn.config)
            record = _run_turn(sweep, turn, executor, begins(turn, expected_s), halving)
            halving.take(turn, record, clock() - began - spent_s)
            turns += 1
            ended(turn, record, halving)
    return halving, clock() - began, turns


def _run_turn(sweep: Sweep, turn: Turn, executor: Executor, watch: Watch, halving: Halving) -> Record:
    config, before = turn.config, halving.rounds.get(turn.config, [])
    search, asked, prepared = halving.batch_search(config), {"rounds": halving.most_rounds}, sweep.prepared
    searches = {} if search is None else {config: search}
    if turn.stage == "look":
        config, before, asked = config.model_copy(update=dict(halving.look)), [], {"position": turn.number}
        prepared = replace(prepared, results_dir=sweep.looks_dir)
    schedule = Schedule([Entry(config)], Stop(len(before) + 1), sweep.name, asked, searches)
    schedule.restore(before)
    [(_, record, _)] = run_rounds(prepared, schedule, executor, lambda *_turn: watch, None, time.monotonic())
    return record
