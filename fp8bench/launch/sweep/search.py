"""Runs the sweep: turn after turn in fresh processes, each record kept as soon as it exists, within the budget.

Looks are kept apart from other results (`looks_dir`), because a look of few steps is not a measurement, and no table
must show it as the latest of its mode. Full rounds are records of a session like any other, under the sweep's name. A
sweep that is called again under its name repeats nothing: its records tell what was tried.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fp8bench.launch.following import Following, spawning
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.launch.session import Where, measure_all
from fp8bench.launch.sweep.budget import Budget, require_enough
from fp8bench.launch.sweep.expected import Forecaster
from fp8bench.launch.sweep.halving import Rule, Seen, Standings, Turn, standings
from fp8bench.launch.sweep.looks import search_of
from fp8bench.launch.sweep.space import Space, Untried
from fp8bench.launch.sweep.spending import MARGIN, Spending
from fp8bench.launch.sweep.untried import not_looked_at
from fp8bench.machine.busy import require_idle
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

    def ended(self, turn: Turn, record: Record, seen: Seen, now: Standings) -> None:
        """Called when a turn has ended and its record is kept."""


@dataclass(frozen=True)
class Sweep:
    """What is searched, how, and for how much. look: settings of a look that replace those of a full round."""

    prepared: Prepared
    name: str
    space: Space
    rule: Rule
    look: Mapping[str, Any]
    budget: Budget

    @property
    def looks_dir(self) -> Path:
        """The folder where the looks are kept."""
        return looks_dir(self.prepared.results_dir, self.name)

    def as_look(self, config: RunConfig) -> RunConfig:
        """Return the configuration in few steps."""
        return config.model_copy(update=dict(self.look))


@dataclass
class Swept:
    """The result of a sweep. untried: what was not run, and why. left: those of them that are worth a look. ended: why
    the sweep stopped early; None if it did not. spent_s: by this call. turns: the number that this call ran.
    """

    sweep: Sweep
    seen: Seen
    standings: Standings
    untried: list[Untried] = field(default_factory=list)
    left: list[RunConfig] = field(default_factory=list)
    ended: str | None = None
    spent_s: float = 0.0
    turns: int = 0


def looks_dir(results_dir: Path, name: str) -> Path:
    """Return the folder of one sweep's looks."""
    return results_dir / SWEEPS / name


def latest(results_dir: Path) -> str:
    """Return the name of the sweep that was last worked on. Raises UsageError if there is none."""
    found = [path for path in (results_dir / SWEEPS).glob("*") if any(path.glob("*/*.json"))]
    if not found:
        raise UsageError(f"{results_dir} has no sweep that could be resumed", "Omit --session, or give --results-dir")
    return max(found, key=lambda path: path.stat().st_mtime).name


def spawn(prepared: Prepared) -> Executor:
    """Return the executor that runs the turns."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return spawning(prepared.entries[0].config.device, prepared.timeout_s)


def resumed(sweep: Sweep) -> Seen:
    """Return what the records of this sweep tell. Raises UsageError if they are of another machine, other software or
    other work.
    """
    prepared, seen = sweep.prepared, Seen()
    here, base = prepared.here or Here(), prepared.entries[0].config
    for folder, stage in ((sweep.looks_dir, "look"), (prepared.results_dir, "round")):
        for kept in results.read(folder, [prepared.instance.key]):
            record = kept.record
            if record.session is None or record.session.session_id != sweep.name or record.config is None:
                continue
            _require_alike(record, record.config, base, here, sweep.name)
            config = record.config.model_copy(update={name: getattr(base, name) for name in NOT_OF_LOOKS})
            if stage == "look" or record.config == config:
                number = record.session.round if stage == "round" else record.session.position
                seen.take(Turn("look" if stage == "look" else "round", config, number), record)
    return seen


def _require_alike(record: Record, config: RunConfig, base: RunConfig, here: Here, name: str) -> None:
    remedy = "Choose another name with --session"
    unlike = here.unlike(record)
    if unlike:
        raise UsageError(
            f"sweep {name!r} cannot be resumed here, since it ran with another {', '.join(unlike)}", remedy
        )
    free = {of: getattr(base, of) for of in (*NOT_OF_LOOKS, *AXES_OF_CONFIG)}
    same = config.model_copy(update=free)
    if same != base:
        other = [of for of in RunConfig.model_fields if getattr(same, of) != getattr(base, of)]
        said = ", ".join(f"{of} {getattr(same, of)} (now {getattr(base, of)})" for of in other)
        raise UsageError(f"sweep {name!r} is of {said}", f"Give the same again, or {remedy[0].lower()}{remedy[1:]}")


def require_budget(sweep: Sweep) -> None:
    """Raise UsageError if the budget is too small for one run, and as `resumed` does. Writes nothing."""
    seen, configs = resumed(sweep), [one.config for one in sweep.space.candidates]
    if configs and not seen.looks:
        spending = spending_of(sweep, seen)
        cheapest = min(configs, key=lambda config: spending.look_s(config) + spending.round_s(config))
        require_enough(sweep.budget, MARGIN * spending.look_s(cheapest), MARGIN * spending.round_s(cheapest))


def run(
    sweep: Sweep,
    executor: Executor,
    listener: Listener,
    clock: Callable[[], float] = time.monotonic,
) -> Swept:
    """Run turns until the sweep or its budget ends. A turn begins only if its forecast is within the budget.

    Raises UsageError as `resumed` does, and Interrupted after Ctrl-C, SIGTERM or SIGHUP.
    """
    began, seen = clock(), resumed(sweep)
    spending = spending_of(sweep, seen)
    swept = Swept(sweep, seen, standings(seen, sweep.rule))
    with Following(executor) as following:
        # The turn that follows, if any, is known only after this one, but all turns have the same ranks.
        following.expect(sweep.prepared.entries[0].config)
        while (turn := spending.next_turn(seen, spent_s := clock() - began)) is not None:
            config = sweep.as_look(turn.config) if turn.stage == "look" else turn.config
            record = _turn(sweep, turn, config, executor, listener, spending.turn_s(turn), seen)
            seen.take(turn, record)
            spending.forecaster.take(record, clock() - began - spent_s)
            swept.turns += 1
            swept.standings = standings(seen, sweep.rule)
            listener.ended(turn, record, seen, swept.standings)
    swept.spent_s = clock() - began
    swept.ended = None if spending.is_over(seen) else f"the budget of {sweep.budget.text}"
    swept.left = [one.config for one in spending.wanted(seen)]
    swept.untried = [*not_looked_at(spending, seen, sweep.budget.text), *sweep.space.untried]
    return swept


def spending_of(sweep: Sweep, seen: Seen) -> Spending:
    """Return the spending at the beginning of a call."""
    return Spending(sweep.space.candidates, sweep.rule, _forecaster(sweep, seen), sweep.as_look, sweep.budget.seconds)


def _forecaster(sweep: Sweep, seen: Seen) -> Forecaster:
    """Return a forecaster with the records of this machine, followed by those of the sweep."""
    prepared = sweep.prepared
    here = prepared.here or Here()
    found = results.read(prepared.results_dir, [prepared.instance.key])
    alike = [kept.record for kept in found if kept.record.source == "measured" and not here.unlike(kept.record)]
    mine = [*seen.looks.values(), *(record for rounds in seen.rounds.values() for record in rounds)]
    return Forecaster([*alike, *mine])


def _turn(
    sweep: Sweep,
    turn: Turn,
    config: RunConfig,
    executor: Executor,
    listener: Listener,
    expected_s: float,
    seen: Seen,
) -> Record:
    """Run one turn, and return its record, which is kept."""
    prepared = sweep.prepared

    def marks(of: RunConfig) -> tuple[str, ...]:
        return require_idle(os.environ, None, prepared.allow_busy) if of.device == "cuda" else ()

    look, rule = turn.stage == "look", sweep.rule
    before: Sequence[Record] = () if look else seen.rounds.get(turn.config, ())
    folder = sweep.looks_dir if look else prepared.results_dir
    place = {"position": turn.number} if look else {"rounds": rule.rounds}
    searches = {} if look or rule.blank is None else {config: search_of(config, seen, rule.blank)}
    machine = prepared.here.machine if prepared.here else None
    where = Where(prepared.instance.key, folder, marks, machine=machine, asked=place, searches=searches)
    schedule = Schedule([Entry(config)], Stop(len(before) + 1), sweep.name)
    schedule.restore(before)
    try:
        [(record, _)] = measure_all(schedule, executor, where, _One(listener.begins(turn, expected_s)))
    except Interrupted as interrupted:
        raise Interrupted(
            "interrupted; the workers of this turn have ended",
            f"What was finished before it is kept: run the same command with --session {sweep.name}",
            interrupted.exit_code,
        ) from interrupted
    return record


@dataclass(frozen=True)
class _One:
    """A session's listener for a single turn."""

    watch: Watch

    def begins(self, entry: Entry, place: Session) -> Watch:
        return self.watch

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None:
        """Do nothing: `run` calls the sweep's own listener."""
