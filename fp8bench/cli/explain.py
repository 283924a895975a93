"""`fp8bench explain`: where a mode's step goes, and in one sentence why it is not faster than another.

A mode is named by what is kept of it: a record, or a trace. What a word names is settled in this order: a file; the
beginning of a run's id; INSTANCE:MODE, where there are results of that instance; MODE. A mode's measurement is that of
`compare`'s first row of it, and its step time the row's.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli import names as known
from fp8bench.cli.broken import tell_broken
from fp8bench.cli.kept import names_a_file, only_id
from fp8bench.cli.output import show
from fp8bench.cli.progress import listener, log

if TYPE_CHECKING:
    from fp8bench.profiling.facts import Facts
    from fp8bench.records.broken import Broken
    from fp8bench.records.results import Kept
    from fp8bench.report.explain import Explained
    from fp8bench.report.explain_choice import Choice
    from fp8bench.schema.execution import Variant
    from fp8bench.schema.record import Record

FORMATS = ("table", "markdown", "json")
AT_MOST = 2


def explain(
    names: list[str] = typer.Argument(
        None,
        metavar="[RECORD [REFERENCE]]",
        autocompletion=known.modes_kept,
        help="A record's or kept trace's file, a run's id or its beginning, INSTANCE:MODE, or MODE; "
        "a mode may have its :RECIPE and /VARIANT (as /graphed).",
    ),
    modes: list[str] = typer.Option(
        None,
        "--mode",
        metavar="MODE",
        autocompletion=known.modes,
        help="Measure this mode now; twice: the second is the reference.",
    ),
    batch_size: int = typer.Option(
        None, "--batch-size", metavar="N", help="Of the modes that are named [as in `compare`'s first row]."
    ),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw the steps as bars, .png or .svg."),
    trace: Path = typer.Option(None, "--trace", metavar="FILE", help="With --mode, keep the Chrome trace."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=known.one_of(*FORMATS), help="How to print."
    ),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are."),
) -> None:
    """Where a mode's step goes, and why it is not faster than another."""
    # A command of a moment, over events that hold each other in no circle: collecting garbage only costs.
    gc.disable()
    from fp8bench.report.drawing import require_drawable
    from fp8bench.report.explain import explain_steps
    from fp8bench.report.plots import step_bars
    from fp8bench.schema.errors import require_known

    require_known("--format", form, FORMATS, "fp8bench explain --help")
    _require_one_way(names or [], modes or [], trace, batch_size)
    if plot is not None:
        require_drawable(plot)
    chosen = measure_now(modes, trace, results_dir) if modes else find_all(names, results_dir, batch_size)
    explained = explain_steps(chosen[0], chosen[1] if len(chosen) == AT_MOST else None)
    _print(explained, form)
    if plot is not None:
        step_bars(explained.modes, plot)
        log(f"drawn as {plot}")


def measure_now(modes: Sequence[str], trace: Path | None, results_dir: Path) -> "list[Facts]":
    """Run each mode once on this machine, as `fp8bench run` would; the first is explained. trace: where its Chrome
    trace is kept. Settings are taken from FP8BENCH_* variables and defaults.

    Exits with the code of `run` where a mode did not run or is invalid; why has been said by then.
    """
    from fp8bench.cli.command import PREFIX, heeded
    from fp8bench.launch.measure import measure, session
    from fp8bench.launch.prepare import prepare, settle
    from fp8bench.launch.session import exit_code
    from fp8bench.schema.request import RunRequest, resolve

    idle = {PREFIX + name.upper() for name in RunRequest.model_fields} - {
        PREFIX + name.upper() for name in heeded("explain", ("--mode",))
    }
    environ = {name: value for name, value in os.environ.items() if name not in idle}
    asked = {"mode": tuple(modes), "rounds": 1, "results_dir": results_dir}
    prepared = prepare(resolve(asked, environ, {}, None).request, environ)
    settle(prepared, None, date.today(), log)
    traces = {prepared.entries[0].label: trace} if trace else None
    with session(prepared, log) as rounds, listener(rounds, quiet=False) as told:
        records = [record for record, _ in measure(prepared, rounds, told, traces)]
    code = exit_code(records, named=True)
    if code:
        raise typer.Exit(code)
    return [_facts(record, record.run_id, results_dir) for record in records]


def _require_one_way(names: Sequence[str], modes: Sequence[str], trace: Path | None, batch_size: int | None) -> None:
    """Raises UsageError unless either records are named or modes are to be measured, one or two of them."""
    from fp8bench.schema.errors import UsageError

    remedy = "Name one or two records, or measure one or two modes with --mode"
    if bool(names) == bool(modes):
        raise UsageError("both records and --mode were given" if names else "nothing to explain was named", remedy)
    if max(len(names), len(modes)) > AT_MOST:
        raise UsageError(f"{max(len(names), len(modes))} were named, and only one is held against another", remedy)
    if trace is not None and not modes:
        raise UsageError("--trace keeps the trace of a measurement, and none was asked for", "Say --mode MODE with it")
    if batch_size is not None and modes:
        raise UsageError(
            "--batch-size chooses among records, and --mode measures",
            f"Say FP8BENCH_BATCH_SIZE={batch_size} to measure at that size",
        )


def find_all(names: Sequence[str], results_dir: Path, batch_size: int | None = None) -> "list[Facts]":
    """The mode to explain, and the reference if one is named, of the same work where there is a choice.

    batch_size: of modes; None: of `compare`'s first row.
    """
    found: list[Facts] = []
    for name in names:
        found.append(find(name, results_dir, batch_size, like=found[0] if found else None))
    return found


def find(name: str, results_dir: Path, batch_size: int | None = None, like: "Facts | None" = None) -> "Facts":
    """What a word on the command line names. Raises UsageError where it names nothing, several, or no profile."""
    from fp8bench.records import results

    if names_a_file(name):
        return _from_file(Path(name), results_dir)
    measured = results.known_instances(results_dir)
    kept = results.read(results_dir, measured)
    tell_broken(kept.broken)
    by_id = {one.record.run_id: one.path for one in kept if one.record.run_id.startswith(name)}
    if by_id:
        return _facts(results.read_record(by_id[only_id(list(by_id), name)]), name, results_dir)
    return _of_mode(name, kept, measured, batch_size, like, results_dir)


def _from_file(path: Path, results_dir: Path) -> "Facts":
    """A record, or a trace: the two are told apart by the list of events that only a trace has."""
    from fp8bench.profiling.facts import facts_of_trace
    from fp8bench.profiling.trace import looks_like_a_trace, read_trace
    from fp8bench.records.results import read_record

    if looks_like_a_trace(path):
        return facts_of_trace(read_trace(path), path.name)
    return _facts(read_record(path), str(path), results_dir)


def _facts(record: "Record", name: str, results_dir: Path) -> "Facts":
    """Of one record, whose step time is its own. Raises UsageError for one that has nothing to explain."""
    from fp8bench.cli.catalog import load_catalog
    from fp8bench.profiling.facts import facts_of
    from fp8bench.report.explain_choice import alone

    _require_profile(record, name)
    row = alone(record, load_catalog(results_dir), date.today())
    return replace(facts_of(record), step_time_s=row.step_time_s)


def _require_profile(record: "Record", name: str) -> None:
    from fp8bench.schema.errors import UsageError

    mode = record.what.mode
    if record.status != "ok":
        raise UsageError(f"{name} is a record of status {record.status}: {record.reason}", "Name one that is ok")
    if record.source != "measured":
        raise UsageError(f"{name} is a {record.source} figure, which has no profile", "Name a measured record")
    if record.profile is None:
        raise UsageError(
            f"{name} was recorded without a profile", f"Measure it anew with `fp8bench explain --mode {mode}`"
        )


def _of_mode(
    name: str,
    kept: "Sequence[Kept]",
    measured: set[str],
    batch_size: int | None,
    like: "Facts | None",
    results_dir: Path,
) -> "Facts":
    """What is kept of [INSTANCE:]MODE[:RECIPE][/VARIANT]. A mode without its recipe takes any. like: what did the same
    work goes before what did not. Says on standard error which measurement it is.

    Raises UsageError where there is none, or a mode without its instance was profiled on several.
    """
    from fp8bench.profiling.facts import facts_of
    from fp8bench.records.results import read_record
    from fp8bench.schema.errors import UsageError

    of_mode, execution = _of_name(name, kept, measured)
    while True:
        fitting = _narrowed(name, [one for one in of_mode if _fits(one.record, execution)], kept, batch_size, like)
        try:
            found = _choices(of_mode, {one.record.run_id for one in fitting}, results_dir)
            break
        except _Unreadable as unreadable:
            # Its samples are: the search had left them out. The rest is asked again without it.
            tell_broken([unreadable.broken])
            of_mode = [one for one in of_mode if one.path != unreadable.broken.path]
    if len(found) > 1:
        first = next(iter(found))
        raise UsageError(f"{name} was profiled on {' and '.join(found)}", f"Say which, as {first}:{name}")
    if not found:
        _require_profile(read_record(fitting[-1].path), name)
        raise UsageError(
            f"{name} has no valid measurement", f"See why with `fp8bench compare {fitting[-1].record.instance}`"
        )
    (choice,) = found.values()
    log(choice.sentence)
    return replace(facts_of(choice.record), step_time_s=choice.row.step_time_s)


class _Unreadable(Exception):
    """A record that was chosen is broken where the search did not look."""

    def __init__(self, broken: "Broken") -> None:
        super().__init__(broken)
        self.broken = broken


def _choices(of_mode: "Sequence[Kept]", fitting: set[str], results_dir: Path) -> "dict[str, Choice]":
    """By instance, what is explained of each. fitting: run ids of which it may be. Raises _Unreadable."""
    from fp8bench.cli.catalog import load_catalog
    from fp8bench.records.broken import Broken
    from fp8bench.records.results import read_whole
    from fp8bench.report.explain_choice import choose

    paths = {one.record.run_id: one.path for one in of_mode}
    catalog, today = load_catalog(results_dir), date.today()

    def whole(record: "Record") -> "Record":
        read = read_whole(paths[record.run_id])
        if isinstance(read, Broken):
            raise _Unreadable(read)
        return read

    found = {}
    for instance in dict.fromkeys(one.record.instance for one in of_mode if one.record.run_id in fitting):
        records = [one.record for one in of_mode if one.record.instance == instance]
        choice = choose(records, lambda record: record.run_id in fitting, catalog, today, whole)
        if choice is not None:
            found[instance] = choice
    return found


def _of_name(name: str, kept: "Sequence[Kept]", measured: set[str]) -> "tuple[list[Kept], Variant | None]":
    """Every measured record of the mode, whatever its status, and how it should be executed; None: in any way."""
    from fp8bench.schema.execution import split_variant

    label, execution = split_variant(name, repr(name))
    instance, _, mode = label.partition(":")
    if instance not in measured or not mode:
        instance, mode = "", label
    found = [
        one
        for one in kept
        if one.record.config is not None
        and instance in ("", one.record.instance)
        and mode in (one.record.config.mode, one.record.config.mode_label)
    ]
    return found, execution


def _fits(record: "Record", execution: "Variant | None") -> bool:
    return record.status == "ok" and execution in (None, record.execution)


def _narrowed(
    name: str, fitting: "list[Kept]", kept: "Sequence[Kept]", batch_size: int | None, like: "Facts | None"
) -> "list[Kept]":
    """Those of the batch size, and of the work of `like` if there are any. Raises UsageError where none is left."""
    from fp8bench.schema.errors import UsageError
    from fp8bench.schema.execution import suffix

    if fitting and batch_size is not None:
        sizes = sorted({one.record.what.batch_size for one in fitting})
        fitting = [one for one in fitting if one.record.what.batch_size == batch_size]
        if not fitting:
            raise UsageError(
                f"{name} has no record at batch size {batch_size}", f"It has: {', '.join(map(str, sizes))}"
            )
    if like is not None:
        fitting = [one for one in fitting if _same_work(one.record, like)] or fitting
    if not fitting:
        there = sorted(
            {
                f"{r.instance}:{r.config.mode_label}{suffix(r.execution)}"
                for r, _ in kept
                if r.config and r.status == "ok"
            }
        )
        raise UsageError(f"no file, run or mode is called {name!r}", f"There are: {', '.join(there) or 'no records'}")
    return fitting


def _same_work(record: "Record", like: "Facts") -> bool:
    what = record.what
    return (what.workload, what.batch_size, what.world_size) == (like.workload, like.batch_size, like.world_size)


def _print(explained: "Explained", form: str) -> None:
    """The table and its sentence to stdout; warnings, one line each, to stderr."""
    from fp8bench.report import explain_text

    show(explain_text, form, explained)
    for warning in explained.warnings:
        typer.echo(f"fp8bench: warning: {warning}", err=True)
