"""`fp8bench explain`: how a mode's step spends its time, and in one sentence why it is not faster than another.

A mode is named by what is kept of it: a record, or a trace. A word is interpreted in this order: a file; the beginning
of a run's id; INSTANCE:MODE, if there are results of that instance; MODE. A mode's measurement is that of its first row
in `compare`, and its step time is that row's.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from fp8bench.cli.command import obeyed
from fp8bench.cli.options import FormOfTables, Optimizer, ResultsDir, Strict, Workload, argument, option
from fp8bench.cli.output import Unread, draw, load_catalog, log, show
from fp8bench.cli.progress import OfSession, shown
from fp8bench.config.request import OPTIONS
from fp8bench.config.sources import resolve
from fp8bench.kinds.run.explain import PICTURE, Choice, alone, choose, document, explain_steps
from fp8bench.launch.examined import examined
from fp8bench.launch.place import register
from fp8bench.launch.prepare import prepare
from fp8bench.launch.session import exit_code_of, measure, session
from fp8bench.profiling.facts import StepFacts, facts_of, facts_of_trace
from fp8bench.profiling.trace import looks_like_a_trace, read_trace
from fp8bench.records import named, results
from fp8bench.records.named import Reference, candidates, nothing_called, of_mode
from fp8bench.records.results import Found, Kept, read_record, sound
from fp8bench.records.select import ALL, Filter
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import flag_of, variable_of
from fp8bench.schema.record import Record
from fp8bench.tables.chart import require_drawable

AT_MOST = 2


def explain(
    names: Annotated[
        tuple[str, ...],
        argument(
            "[RECORD [REFERENCE]]",
            "A record's or kept trace's file, a run's id or its beginning, INSTANCE:MODE, or MODE; a mode may have its "
            ":RECIPE and /VARIANT (as /graphed).",
            "modes",
        ),
    ] = (),
    modes: Annotated[
        tuple[str, ...], option("MODE", "Measure this mode now; twice: the second is the reference.", "modes", "--mode")
    ] = (),
    batch_size: Annotated[int | None, option("N", "Of the modes that are named [as in `compare`'s first row].")] = None,
    workload: Workload = None,
    optimizer: Optimizer = None,
    plot: Annotated[Path | None, option("FILE", "Draw the steps as bars, .png, .svg or .pdf.")] = None,
    trace: Annotated[Path | None, option("FILE", "With --mode, keep the Chrome trace.")] = None,
    form: FormOfTables = "table",
    strict: Strict = False,
    results_dir: ResultsDir = Path("results"),
) -> None:
    wanted = Filter(workload=workload, batch_size=batch_size, optimizer=optimizer)
    _require_one_way(names, modes, trace, wanted)
    if plot is not None:
        require_drawable(plot)
    unread = Unread()
    chosen = measure_now(modes, trace, results_dir) if modes else find_all(names, results_dir, unread, wanted)
    shown = document(explain_steps(chosen[0], chosen[1] if len(chosen) == AT_MOST else None))
    show(shown, form)
    draw(shown, PICTURE, plot)
    unread.end(strict)


def measure_now(modes: Sequence[str], trace: Path | None, results_dir: Path) -> list[StepFacts]:
    """Run each mode once on this machine, as `fp8bench run` would; the first is explained. trace: where its Chrome
    trace is kept. Settings are taken from FP8BENCH_* variables and defaults.

    Exits with the code of `run` if a mode did not run or is invalid; the reason has already been printed then.
    """

    idle = set(map(variable_of, OPTIONS.keys() - obeyed("explain", ("--mode",))))
    environ = {name: value for name, value in os.environ.items() if name not in idle}
    flags = {"mode": tuple(modes), "rounds": 1, "results_dir": results_dir}
    prepared = prepare(resolve(flags, environ, {}, None).request, environ)
    examined([entry.config for entry in prepared.entries])
    register(prepared, None, date.today(), log)
    traces = {prepared.entries[0].label: trace} if trace else None
    with session(prepared, log) as rounds, shown(quiet=False) as on:
        records = [record for record, _ in measure(prepared, rounds, OfSession(rounds, on), traces)]
    code = exit_code_of((record.status for record in records), named=True)
    if code:
        raise typer.Exit(code)
    return [_facts(record, record.run_id, results_dir) for record in records]


def _require_one_way(names: Sequence[str], modes: Sequence[str], trace: Path | None, wanted: Filter) -> None:
    several, remedy = max(len(names), len(modes)), "Name one or two records, or measure one or two modes with --mode"
    for refused, what, instead in (
        (names and modes, "both records and --mode were given", remedy),
        (not several, "nothing to explain was named", remedy),
        (several > AT_MOST, f"{several} were named, and only one is compared with another", remedy),
        (
            trace is not None and not modes,
            "--trace keeps the trace of a measurement, and nothing is measured",
            "Give --mode MODE with it",
        ),
    ):
        if refused:
            raise UsageError(what, instead)
    given = [name for name, value in vars(wanted).items() if value is not None]
    if given and modes:
        variable = variable_of(given[0])
        raise UsageError(
            f"{flag_of(given[0])} chooses among records, and --mode measures",
            f"Set {variable}={getattr(wanted, given[0])} to measure so",
        )


def find_all(names: Sequence[str], results_dir: Path, unread: Unread, wanted: Filter = ALL) -> list[StepFacts]:
    """Return the mode to explain, and the reference if one is named, with the same work if there is a choice."""
    found: list[StepFacts] = []
    for name in names:
        found.append(find(name, results_dir, unread, wanted, like=found[0] if found else None))
    return found


def find(
    name: str, results_dir: Path, unread: Unread, wanted: Filter = ALL, like: StepFacts | None = None
) -> StepFacts:
    """Return what a word on the command line names. wanted: a filter for modes; what it leaves open is taken from their
    first row in `compare`. like: records of the same work are preferred. Raises UsageError if the word names nothing,
    several, or no profile.
    """
    if named.names_a_file(name):
        path = Path(name)
        # Only a trace has a list of events.
        if looks_like_a_trace(path):
            return facts_of_trace(read_trace(path), path.name)
        return _facts(read_record(path), name, results_dir)
    measured = results.known_instances(results_dir)
    kept = results.read(results_dir, measured)
    unread(kept.broken)
    path_of_id = named.by_id(name, {one.record.run_id: one.path for one in kept})
    if path_of_id is not None:
        return _facts(read_record(path_of_id), name, results_dir)
    return _of_mode(name, kept, named.parse_mode(name, measured), wanted, like, results_dir, unread)


def _facts(record: Record, name: str, results_dir: Path) -> StepFacts:
    _require_profile(record, name)
    row = alone(record, load_catalog(results_dir), date.today())
    return replace(facts_of(record), step_time_s=row.step_time_s)


def _require_profile(record: Record, name: str) -> None:
    again = f"Measure it again with `fp8bench explain --mode {record.what.mode}`"
    for refused, what, remedy in (
        (record.status != "ok", f"is a record of status {record.status}: {record.reason}", "Name one that is ok"),
        (
            record.source != "measured",
            f"is a {record.source} figure, which has no profile",
            "Name a measured record",
        ),
        (record.profile is None, "was recorded without a profile", again),
    ):
        if refused:
            raise UsageError(f"{name} {what}", remedy)


def _of_mode(
    name: str,
    kept: Found[Kept[Record]],
    reference: Reference,
    wanted: Filter,
    like: StepFacts | None,
    results_dir: Path,
    unread: Unread,
) -> StepFacts:
    """Return what is kept of [INSTANCE:]MODE[:RECIPE][/VARIANT]. A mode without its recipe matches any. like: records
    of the same work are preferred. Logs which measurement is used.

    Raises UsageError if there is none, or if a mode without its instance was profiled on several.
    """
    catalog, today = load_catalog(results_dir), date.today()
    work = ALL
    if like is not None:
        work = Filter(workload=like.workload, batch_size=like.batch_size, world_size=like.world_size)

    def choices(records: list[Record]) -> dict[str, Choice]:
        fitting = candidates(name, records, reference, wanted, work)
        if not fitting:
            raise nothing_called(name, kept)
        found = {}
        for instance in dict.fromkeys(record.instance for record in fitting):
            of_instance, may_be = ([r for r in some if r.instance == instance] for some in (records, fitting))
            choice = choose(of_instance, may_be, catalog, today)
            if choice is not None:
                found[instance] = choice
        if not found:
            _require_profile(fitting[-1], name)
            raise UsageError(
                f"{name} has no valid measurement", f"See why with `fp8bench compare {fitting[-1].instance}`"
            )
        return found

    def shown(records: list[Record]) -> list[Record]:
        rows = {run_id for choice in choices(records).values() for run_id in choice.row.run_ids}
        return [record for record in records if record.run_id in rows]

    found = choices(sound(Found(tuple(of_mode(reference, kept)), copies=kept.copies), unread, shown))
    if len(found) > 1:
        first = next(iter(found))
        raise UsageError(f"{name} was profiled on {' and '.join(found)}", f"Choose one, as {first}:{name}")
    (choice,) = found.values()
    log(choice.sentence)
    return replace(facts_of(choice.record), step_time_s=choice.row.step_time_s)
