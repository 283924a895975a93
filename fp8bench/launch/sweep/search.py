"""Runs the sweep: turn after turn in fresh processes, each record kept as soon as it exists, within the budget.

Looks are kept apart (`looks_dir`): one of few steps is no measurement for a table to show. Full rounds are records of a
session under the sweep's name. Called again under its name, a sweep repeats nothing: its records tell what was tried.
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fp8bench.launch.forecast import AXES, MINUTE_S, Forecaster, duration
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes.watch import Executor, Watch
from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.launch.session import run_rounds
from fp8bench.launch.sweep.halving import MARGIN, Candidates, Halving, Turn, Untried
from fp8bench.machine.identity import Here
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.records import results
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, UsageError
from fp8bench.schema.record import Record

SWEEPS = ".sweeps"
"""A folder in the folder of results; hidden, so that no other command reads it."""

NOT_OF_LOOKS = ("steps", "warmup", "min_time_s")
"""Settings in which a look differs from a full round."""

AXES_OF_CONFIG = ("mode", *AXES, "te_switches")

UNITS_S = {"s": 1, "min": MINUTE_S, "h": SECONDS_PER_HOUR}


class Budget(NamedTuple):
    """What a call may spend. text: as the user gave it. usd_per_hour: of the machine; None if unknown."""

    seconds: float
    text: str
    usd_per_hour: float | None

    def usd(self, seconds: float) -> float | None:
        """Return what so many seconds cost."""
        return None if self.usd_per_hour is None else seconds / SECONDS_PER_HOUR * self.usd_per_hour


def parse_time(text: str) -> float:
    """Return the seconds of `10min`, `600s` or `2h`. Raises UsageError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2] not in UNITS_S or float(found[1]) == 0:
        what = f"--budget: invalid value {text!r}: it is not a duration above 0 with a unit of time"
        raise UsageError(what, f"Give, for example, --budget 10min; units are {', '.join(UNITS_S)}")
    return float(found[1]) * UNITS_S[found[2]]


def budget(time: str | None, usd: float | None, usd_per_hour: float | None, default: str) -> Budget:
    """Return the budget. Raises UsageError for two, for an invalid amount, and for USD if no price is known."""
    if usd is None:
        return Budget(parse_time(time or default), time or default, usd_per_hour)
    if time is not None:
        raise UsageError("both --budget and --budget-usd were given", "Give one of them")
    if not 0 < usd < math.inf:
        raise UsageError(f"--budget-usd: invalid value {usd:g}: it buys nothing", "Give an amount above 0")
    if usd_per_hour is None:
        why = "--budget-usd needs the price of this machine, and none is known"
        raise UsageError(why, "Give it with --price, or use --budget")
    return Budget(usd / usd_per_hour * SECONDS_PER_HOUR, f"{usd:g} USD", usd_per_hour)


@dataclass(frozen=True)
class Sweep:
    """What is searched, how, and for how much. rounds: of a configuration that stays. blank, look: as in `Halving`."""

    prepared: Prepared
    name: str
    candidates: Candidates
    untried: Untried
    rounds: int
    blank: BatchSearch | None
    look: Mapping[str, Any]
    budget: Budget

    @property
    def looks_dir(self) -> Path:
        """The folder where the looks are kept."""
        return self.prepared.results_dir / SWEEPS / self.name


def latest(results_dir: Path) -> str:
    """Return the name of the sweep that was last worked on. Raises UsageError if there is none."""
    found = [path for path in (results_dir / SWEEPS).glob("*") if any(path.glob("*/*.json"))]
    if not found:
        raise UsageError(f"{results_dir} has no sweep that could be resumed", "Omit --session, or give --results-dir")
    return max(found, key=lambda path: path.stat().st_mtime).name


def begun(sweep: Sweep) -> Halving:
    """Return the search, with what records tell. Raises UsageError if they are of another machine, software or work."""
    prepared, of_looks, of_rounds = sweep.prepared, dict[RunConfig, Record](), dict[RunConfig, list[Record]]()
    here, base = prepared.here or Here(), prepared.entries[0].config
    looks, kept = (results.read(of, [prepared.instance.key]) for of in (sweep.looks_dir, prepared.results_dir))
    for record, path in [*looks, *kept]:
        if record.session is None or record.session.session_id != sweep.name or record.config is None:
            continue
        if unlike := here.unlike(record):
            why = f"sweep {sweep.name!r} cannot be resumed here, since it ran with another {', '.join(unlike)}"
            raise UsageError(why, "Choose another name with --session")
        config = record.config.model_copy(update={name: getattr(base, name) for name in NOT_OF_LOOKS})
        same = config.model_copy(update={of: getattr(base, of) for of in AXES_OF_CONFIG})
        if other := [of for of in RunConfig.model_fields if getattr(same, of) != getattr(base, of)]:
            said = ", ".join(f"{of} {getattr(same, of)} (now {getattr(base, of)})" for of in other)
            remedy = "Give the same again, or choose another name with --session"
            raise UsageError(f"sweep {sweep.name!r} is of {said}", remedy)
        if sweep.looks_dir in path.parents:
            of_looks[config] = record
        elif record.config == config:
            of_rounds.setdefault(config, []).append(record)
    of_here = [record for record, _ in kept if record.source == "measured" and not here.unlike(record)]
    forecaster = Forecaster([*of_here, *of_looks.values(), *chain.from_iterable(of_rounds.values())])
    settings = (sweep.candidates, sweep.rounds, sweep.blank, sweep.look, sweep.budget.seconds)
    return Halving(*settings, forecaster, of_looks, of_rounds)


def require_budget(sweep: Sweep) -> None:
    """Raise UsageError if no configuration could be looked at and measured once, and as `begun` does."""
    halving, budget = begun(sweep), sweep.budget
    turns_s = [halving.look_s(config) + halving.round_s(config) for config in sweep.candidates]
    least_s = MARGIN * min(turns_s, default=0.0)
    if halving.looks or budget.seconds >= least_s:
        return
    least = duration(least_s)
    if budget.text.endswith("USD"):
        least = f"{budget.usd(least_s):.2f} USD ({least})"
    what = f"a budget of {budget.text} is too small for one run: a look and a round take about {least}"
    raise UsageError(what, "Give at least that, or fewer --steps and a shorter --min-time")


def run(
    sweep: Sweep,
    executor: Executor,
    begins: Callable[[Turn, float], Watch],
    ended: Callable[[Turn, Record, Halving], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Halving, float, int]:
    """Run turns until the sweep or its budget ends. Return the search, and the seconds and the turns of this call.
    begins: returns what is called with the turn's progress. Raises UsageError as `begun` does, and Interrupted.
    """
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
    search, asked, prepared = halving.batch_search(config), {"rounds": sweep.rounds}, sweep.prepared
    searches = {} if search is None else {config: search}
    if turn.stage == "look":
        config, before, asked = config.model_copy(update=dict(sweep.look)), [], {"position": turn.number}
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
