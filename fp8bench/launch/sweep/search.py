"""Runs the sweep: turn after turn in fresh processes, each record kept as soon as it exists, within the budget.

Looks are kept apart (`looks_dir`): one of few steps is no measurement for a table to show. Full rounds are records of a
session under the sweep's name. Called again under its name, a sweep repeats nothing: its records tell what was tried.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fp8bench.launch.forecast import AXES, MINUTE_S, Forecaster, duration
from fp8bench.launch.plan import Entry, Schedule, Stop
from fp8bench.launch.prepare import REQUESTED_AS, Prepared, find_session
from fp8bench.launch.processes.watch import Executor, Watch
from fp8bench.launch.session import run_rounds
from fp8bench.launch.sweep.halving import MARGIN, Halving, Turn, Untried
from fp8bench.machine.identity import Here
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.records import results
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, UsageError
from fp8bench.schema.option import flag_of
from fp8bench.schema.record import Record

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


def latest(results_dir: Path) -> str:
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


def run(
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
    try:
        [(_, record, _)] = run_rounds(prepared, schedule, executor, lambda *_turn: watch, {}, time.monotonic())
    except Interrupted as interrupted:
        raise Interrupted(
            "interrupted; the workers of this turn have ended",
            f"What was finished before it is kept: run the same command with --session {sweep.name}",
            interrupted.exit_code,
        ) from interrupted
    return record
