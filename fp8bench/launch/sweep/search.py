"""Runs the sweep: turn after turn in fresh processes, each record kept as soon as it exists, within the budget.

Looks are kept apart from other results (`looks_dir`), because a look of few steps is not a measurement, and no table
must show it as the latest of its mode. Full rounds are records of a session like any other, under the sweep's name. A
sweep that is called again under its name repeats nothing: its records tell what was tried.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from fp8bench.launch.forecast import duration
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.launch.session import run_rounds
from fp8bench.launch.sweep.budget import MARGIN, Budget, Forecaster, Spending
from fp8bench.launch.sweep.halving import Rule, Seen, Standings, Turn, search_of, standings
from fp8bench.launch.sweep.space import Space, Untried
from fp8bench.machine.identity import Here
from fp8bench.pricing.cost import SECONDS_PER_HOUR
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
        return self.prepared.results_dir / SWEEPS / self.name

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


def latest(results_dir: Path) -> str:
    """Return the name of the sweep that was last worked on. Raises UsageError if there is none."""
    found = [path for path in (results_dir / SWEEPS).glob("*") if any(path.glob("*/*.json"))]
    if not found:
        raise UsageError(f"{results_dir} has no sweep that could be resumed", "Omit --session, or give --results-dir")
    return max(found, key=lambda path: path.stat().st_mtime).name


def resumed(sweep: Sweep) -> Seen:
    """Return what the records of this sweep tell. Raises UsageError if they are of another machine, other software or
    other work.
    """
    prepared, seen = sweep.prepared, Seen()
    base = prepared.entries[0].config
    for folder, stage in ((sweep.looks_dir, "look"), (prepared.results_dir, "round")):
        for kept in results.read(folder, [prepared.instance.key]):
            record = kept.record
            if record.session is None or record.session.session_id != sweep.name or record.config is None:
                continue
            unlike = (prepared.here or Here()).unlike(record)
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
            if stage == "look":
                seen.take(Turn("look", config, record.session.position), record)
            elif record.config == config:
                seen.take(Turn("round", config, record.session.round), record)
    return seen


def spending_of(sweep: Sweep, seen: Seen) -> Spending:
    """Return the spending at the beginning of a call, with the records of this machine, and those of the sweep."""
    prepared = sweep.prepared
    here = prepared.here or Here()
    found = results.read(prepared.results_dir, [prepared.instance.key])
    alike = [kept.record for kept in found if kept.record.source == "measured" and not here.unlike(kept.record)]
    mine = [*seen.looks.values(), *(record for rounds in seen.rounds.values() for record in rounds)]
    forecaster = Forecaster([*alike, *mine])
    return Spending(sweep.space.candidates, sweep.rule, forecaster, sweep.as_look, sweep.budget.seconds)


def require_budget(sweep: Sweep) -> None:
    """Raise UsageError if no configuration could be looked at and measured once, and as `resumed` does."""
    seen, budget = resumed(sweep), sweep.budget
    spending = spending_of(sweep, seen)
    turns_s = [spending.look_s(one.config) + spending.round_s(one.config) for one in sweep.space.candidates]
    least_s = MARGIN * min(turns_s, default=0.0)
    if seen.looks or budget.seconds is None or budget.seconds >= least_s:
        return
    least = duration(least_s)
    if budget.text.endswith("USD") and budget.usd_per_hour is not None:
        least = f"{least_s / SECONDS_PER_HOUR * budget.usd_per_hour:.2f} USD ({least})"
    raise UsageError(
        f"a budget of {budget.text} is too small for one run: a look and a round of one configuration take about "
        f"{least}",
        "Give at least that, or fewer --steps and a shorter --min-time",
    )


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
    with executor:
        while (turn := spending.next_turn(seen, spent_s := clock() - began)) is not None:
            watch = listener.begins(turn, (spending.look_s if turn.stage == "look" else spending.round_s)(turn.config))
            record = _turn(sweep, turn, executor, watch, seen)
            seen.take(turn, record)
            spending.forecaster.take(record, clock() - began - spent_s)
            swept.turns += 1
            swept.standings = standings(seen, sweep.rule)
            listener.ended(turn, record, seen, swept.standings)
    swept.spent_s = clock() - began
    swept.ended = None if spending.is_over(seen) else f"the budget of {sweep.budget.text}"
    swept.left = [one.config for one in spending.wanted(seen)]
    swept.untried = [*spending.not_looked_at(seen, sweep.budget.text), *sweep.space.untried]
    return swept


def _turn(sweep: Sweep, turn: Turn, executor: Executor, watch: Watch, seen: Seen) -> Record:
    look, rule, prepared = turn.stage == "look", sweep.rule, sweep.prepared
    config = sweep.as_look(turn.config) if look else turn.config
    if look:
        prepared, asked = replace(prepared, results_dir=sweep.looks_dir), {"position": turn.number}
    else:
        searches = {config: search_of(config, seen, rule.blank)} if rule.blank is not None else {}
        prepared, asked = replace(prepared, searches=searches), {"rounds": rule.rounds}
    before: Sequence[Record] = () if look else seen.rounds.get(turn.config, ())
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


@dataclass(frozen=True)
class _One:
    """A session's listener for a single turn; the sweep's own is called by `run`."""

    watch: Watch

    def begins(self, entry: Entry, place: Session) -> Watch:
        return self.watch

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None: ...
