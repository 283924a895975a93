"""Runs the sweep: turn after turn in fresh processes, each record kept as soon as it exists, within the budget.

Looks are kept apart from other results (`looks_dir`), because a look of few steps is not a measurement, and no table
must show it as the latest of its mode. Full rounds are records of a session like any other, under the sweep's name. A
sweep that is called again under its name repeats nothing: its records tell what was tried.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fp8bench.launch.forecast import Forecaster, duration
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.launch.session import run_rounds
from fp8bench.launch.sweep.budget import MARGIN, Budget, Spending
from fp8bench.launch.sweep.halving import Rule, Seen, Turn, search_of
from fp8bench.launch.sweep.space import Candidates, Untried
from fp8bench.machine.identity import Here
from fp8bench.records import results
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, UsageError
from fp8bench.schema.record import Record, Session

SWEEPS = ".sweeps"
"""A folder in the folder of results; hidden, so that no other command reads it."""

NOT_OF_LOOKS = ("steps", "warmup", "min_time_s")
"""Settings in which a look differs from a full round."""

AXES_OF_CONFIG = ("mode", "recipe", "batch_size", "compile", "cuda_graphs", "te_attention", "te_switches")


class Listener(Protocol):
    """Is called as the sweep proceeds."""

    def begins(self, turn: Turn, expected_s: float) -> Watch:
        """Called when a turn begins; the returned function is called with the turn's progress."""

    def ended(self, turn: Turn, record: Record, spending: Spending) -> None:
        """Called when a turn has ended and its record is kept."""


@dataclass(frozen=True)
class Sweep:
    """What is searched, how, and for how much. look: settings of a look that replace those of a full round."""

    prepared: Prepared
    name: str
    candidates: Candidates
    untried: Untried
    rule: Rule
    look: Mapping[str, Any]
    budget: Budget

    @property
    def looks_dir(self) -> Path:
        """The folder where the looks are kept."""
        return self.prepared.results_dir / SWEEPS / self.name


class Swept(NamedTuple):
    """The result of a sweep. spending: as it ended, with all that was seen. spent_s: by this call. turns: the number
    that this call ran.
    """

    sweep: Sweep
    spending: Spending
    spent_s: float
    turns: int

    @property
    def untried(self) -> Untried:
        """What was not run, and why; first what is worth a look."""
        return [*self.spending.not_looked_at(self.sweep.budget.text), *self.sweep.untried]


def latest(results_dir: Path) -> str:
    """Return the name of the sweep that was last worked on. Raises UsageError if there is none."""
    found = [path for path in (results_dir / SWEEPS).glob("*") if any(path.glob("*/*.json"))]
    if not found:
        raise UsageError(f"{results_dir} has no sweep that could be resumed", "Omit --session, or give --results-dir")
    return max(found, key=lambda path: path.stat().st_mtime).name


def begun(sweep: Sweep) -> Spending:
    """Return the spending at the beginning of a call, with what the sweep's records and others of this machine tell.
    Raises UsageError if those of the sweep are of another machine, other software or other work.
    """
    prepared, seen = sweep.prepared, Seen()
    here, base = prepared.here or Here(), prepared.entries[0].config
    looks, kept = (
        [record for record, _ in results.read(folder, [prepared.instance.key])]
        for folder in (sweep.looks_dir, prepared.results_dir)
    )
    for record, is_look in [*((one, True) for one in looks), *((one, False) for one in kept)]:
        if record.session is None or record.session.session_id != sweep.name or record.config is None:
            continue
        unlike = here.unlike(record)
        if unlike:
            why = f"sweep {sweep.name!r} cannot be resumed here, since it ran with another {', '.join(unlike)}"
            raise UsageError(why, "Choose another name with --session")
        config = record.config.model_copy(update={name: getattr(base, name) for name in NOT_OF_LOOKS})
        same = config.model_copy(update={of: getattr(base, of) for of in AXES_OF_CONFIG})
        other = [of for of in RunConfig.model_fields if getattr(same, of) != getattr(base, of)]
        if other:
            said = ", ".join(f"{of} {getattr(same, of)} (now {getattr(base, of)})" for of in other)
            remedy = "Give the same again, or choose another name with --session"
            raise UsageError(f"sweep {sweep.name!r} is of {said}", remedy)
        if is_look:
            seen.take(Turn("look", config, record.session.position), record)
        elif record.config == config:
            seen.take(Turn("round", config, record.session.round), record)
    of_here = [record for record in kept if record.source == "measured" and not here.unlike(record)]
    forecaster = Forecaster([*of_here, *seen.looks.values(), *chain.from_iterable(seen.rounds.values())])
    return Spending(sweep.candidates, sweep.rule, sweep.look, sweep.budget.seconds, seen, forecaster)


def require_budget(sweep: Sweep) -> None:
    """Raise UsageError if no configuration could be looked at and measured once, and as `begun` does."""
    spending, budget = begun(sweep), sweep.budget
    turns_s = [spending.look_s(config) + spending.round_s(config) for config in sweep.candidates]
    least_s = MARGIN * min(turns_s, default=0.0)
    if spending.seen.looks or budget.seconds >= least_s:
        return
    least = duration(least_s)
    if budget.text.endswith("USD"):
        least = f"{budget.usd(least_s):.2f} USD ({least})"
    raise UsageError(
        f"a budget of {budget.text} is too small for one run: a look and a round of one configuration take about "
        f"{least}",
        "Give at least that, or fewer --steps and a shorter --min-time",
    )


def run(sweep: Sweep, executor: Executor, listener: Listener, clock: Callable[[], float] = time.monotonic) -> Swept:
    """Run turns until the sweep or its budget ends. A turn begins only if its forecast is within the budget.

    Raises UsageError as `begun` does, and Interrupted after Ctrl-C, SIGTERM or SIGHUP.
    """
    began, turns = clock(), 0
    spending = begun(sweep)
    with executor:
        while (turn := spending.next_turn(spent_s := clock() - began)) is not None:
            watch = listener.begins(turn, (spending.look_s if turn.stage == "look" else spending.round_s)(turn.config))
            record = _turn(sweep, turn, executor, watch, spending.seen)
            spending.take(turn, record, clock() - began - spent_s)
            turns += 1
            listener.ended(turn, record, spending)
    return Swept(sweep, spending, clock() - began, turns)


def _turn(sweep: Sweep, turn: Turn, executor: Executor, watch: Watch, seen: Seen) -> Record:
    rule, prepared, config, before = sweep.rule, sweep.prepared, turn.config, list[Record]()
    asked: dict[str, int] = {"position": turn.number}
    if turn.stage == "look":
        config = config.model_copy(update=dict(sweep.look))
        prepared = replace(prepared, results_dir=sweep.looks_dir)
    else:
        searches = {config: search_of(config, seen, rule.blank)} if rule.blank is not None else {}
        prepared, asked, before = (
            replace(prepared, searches=searches),
            {"rounds": rule.rounds},
            seen.rounds.get(config, []),
        )
    schedule = Schedule([Entry(config)], Stop(len(before) + 1), sweep.name)
    schedule.restore(before)
    try:
        [(record, _)] = run_rounds(prepared, schedule, executor, _One(watch), asked, {}, time.monotonic())
    except Interrupted as interrupted:
        raise Interrupted(
            "interrupted; the workers of this turn have ended",
            f"What was finished before it is kept: run the same command with --session {sweep.name}",
            interrupted.exit_code,
        ) from interrupted
    return record


class _One(NamedTuple):
    """A session's listener for a single turn; the sweep's own is called by `run`."""

    watch: Watch

    def begins(self, entry: Entry, place: Session) -> Watch:
        return self.watch

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None: ...
