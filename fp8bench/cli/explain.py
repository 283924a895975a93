"""`fp8bench explain`: how a mode's step spends its time, and in one sentence why it is not faster than another.

A word is interpreted in this order: a record's file; the beginning of a run's id; INSTANCE:MODE, if there are results
of that instance; MODE. A mode's measurement is that of its first row in `compare`, and its step time is that row's.
"""

from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import PositiveInt

from fp8bench.cli.options import FormOfTables, Optimizer, ResultsDir, Strict, Workload, argument, option
from fp8bench.cli.output import Unread, draw, load_catalog, log, show
from fp8bench.kinds.run.explain import PICTURE, choose, document, explain_steps
from fp8bench.profiling.facts import StepFacts, facts_of
from fp8bench.records import named, results
from fp8bench.records.results import read_record
from fp8bench.records.select import ALL, Filter
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record
from fp8bench.stats.steps import step_times
from fp8bench.tables.chart import require_drawable
from fp8bench.tables.written import workers


def explain(
    names: Annotated[
        tuple[str, ...],
        argument(
            "RECORD",
            "A record's file, a run's id or its beginning, INSTANCE:MODE, or MODE; a mode may have its :RECIPE and "
            "/VARIANT (as /graphed). A second one is the reference.",
        ),
    ] = (),
    batch_size: Annotated[
        PositiveInt | None, option("N", "Of the modes that are named [as in `compare`'s first row].")
    ] = None,
    workload: Workload = None,
    optimizer: Optimizer = None,
    plot: Annotated[Path | None, option("FILE", "Draw the steps as bars, .png, .svg or .pdf.")] = None,
    form: FormOfTables = "table",
    strict: Strict = False,
    results_dir: ResultsDir = Path("results"),
) -> None:
    if not 1 <= len(names) <= 2:
        what = f"{len(names)} were named, and only one is compared with another" if names else "nothing was named"
        raise UsageError(what, "Name one or two of what `fp8bench run` measured")
    if plot is not None:
        require_drawable(plot)
    wanted = Filter(workload=workload, batch_size=batch_size, optimizer=optimizer)
    unread, like, chosen = Unread(), ALL, list[StepFacts]()
    for name in names:
        chosen.append(find(name, results_dir, unread, wanted, like))
        first = chosen[0]
        like = Filter(workload=first.workload, batch_size=first.batch_size, world_size=first.world_size)
    explained = document(explain_steps(chosen[0], chosen[1] if len(chosen) > 1 else None))
    show(explained, form)
    draw(explained, PICTURE, plot)
    unread.end(strict)


def find(name: str, results_dir: Path, unread: Unread, wanted: Filter, like: Filter) -> StepFacts:
    """Return what a word on the command line names. wanted: a filter for modes; what it leaves open is taken from their
    first row in `compare`. like: of such work records are preferred. Logs which measurement of a mode is used.
    Raises UsageError if the word names nothing, several, or no profile.
    """
    if named.names_a_file(name):
        return _facts(read_record(Path(name)), name)
    measured = results.known_instances(results_dir)
    kept = results.read(results_dir, measured)
    unread(kept.broken)
    if path := named.by_id(name, {one.record.run_id: one.path for one in kept}):
        return _facts(read_record(path), name)
    reference = named.parse_mode(name, measured)
    of_mode = Filter(instance=reference.instance or None, mode=reference.mode)
    records = [one for each in results.measured(results_dir, measured, unread, of_mode) for one in each.rounds]
    fitting = named.candidates(name, records, reference, wanted, like)
    if not fitting:
        if records or not (there := named.of_mode(reference, kept)):
            raise named.nothing_called(name, kept)
        remedy = f"See why with `fp8bench compare {there[-1].record.instance}`"
        raise UsageError(f"{name} has no valid measurement", remedy)
    found = choose(fitting, load_catalog(results_dir), date.today())
    if not found:
        _require_profile(fitting[-1], name)
        raise named.nothing_called(name, kept)
    if len(found) > 1:
        remedy = f"Choose one, as {next(iter(found))}:{name}"
        raise UsageError(f"{name} was profiled on {' and '.join(found)}", remedy)
    ((record, row),) = found.values()
    log(
        f"{row.variant_label} on {row.instance}: batch {row.batch_size} x {workers(row.world_size, row.device)}, "
        f"session {row.session_id or record.run_id}, profile of round {record.session.round if record.session else 1}"
    )
    return facts_of(record, row.step_time_s)


def _facts(record: Record, name: str) -> StepFacts:
    _require_profile(record, name)
    times = step_times(record)
    return facts_of(record, times.mean_s if times else None)


def _require_profile(record: Record, name: str) -> None:
    if record.status != "ok":
        raise UsageError(f"{name} is a record of status {record.status}: {record.reason}", "Name one that is ok")
    if record.source != "measured":
        raise UsageError(f"{name} is a {record.source} figure, which has no profile", "Name a measured record")
    if record.profile is None:
        remedy = f"Measure it again with `fp8bench run --mode {record.what.mode}`"
        raise UsageError(f"{name} was recorded without a profile", remedy)
