"""`fp8bench explain`: how a mode's step spends its time, and in one sentence why it is not faster than another. A word
names a record's file, or else the beginning of a run's id, or INSTANCE:MODE if there are results of that instance, or
MODE: its measurement is that of its first row in `compare`, and its step time is that row's.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import PositiveInt

from fp8bench.cli.options import FormOfTables, Optimizer, ResultsDir, Unread, Workload, argument, option
from fp8bench.cli.output import draw, load_catalog, log, show
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.explain import PICTURE, document, explain_steps, profiled
from fp8bench.kinds.run.row import Row
from fp8bench.profiling.causes import StepFacts, facts_of
from fp8bench.records import named, results
from fp8bench.records.results import Found, Kept, read_record
from fp8bench.records.select import Filter, broadest_first, grouped, work_of
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import suffix
from fp8bench.schema.instance import Catalog
from fp8bench.schema.option import Option
from fp8bench.schema.record import Record
from fp8bench.stats.steps import step_times
from fp8bench.tables.chart import require_drawable
from fp8bench.tables.written import workers


def explain(
    unread: Unread,
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
    floor: Annotated[bool, Option("How far each part could go on its GPU; measured by `run --floor`")] = False,
    form: FormOfTables = "table",
    results_dir: ResultsDir = Path("results"),
) -> None:
    if not 1 <= len(names) <= 2:
        what = f"{len(names)} were named, and only one is compared with another" if names else "nothing was named"
        raise UsageError(what, "Name one or two of what `fp8bench run` measured")
    if plot is not None:
        require_drawable(plot)
    wanted = Filter(workload=workload, batch_size=batch_size, optimizer=optimizer)
    likes, chosen, sizes = tuple[Filter, ...](), list[StepFacts](), list[set[int]]()
    # Files need no folder.
    files = all(map(named.names_a_file, names))
    kept = Found[Kept[Record]](()) if files else results.read(results_dir, results.known_instances(results_dir))
    unread(kept.broken)
    for name in names:
        facts, known = find(name, results_dir, kept, unread, wanted, likes)
        chosen.append(facts)
        sizes.append(known)
        like = Filter(workload=chosen[0].workload, batch_size=chosen[0].batch_size)
        # A step on as many GPUs is the closest, then one of the same batch.
        likes = replace(like, world_size=chosen[0].world_size), like
    if floor and len(chosen) > 1:
        raise UsageError("--floor is of one step, and two were named", "Name one of them")
    reference = chosen[1] if len(chosen) > 1 else None
    explained = document(explain_steps(chosen[0], reference, set.intersection(*sizes)), floor)
    show(explained, form)
    draw(explained, PICTURE, plot)


def find(
    name: str, results_dir: Path, kept: Found[Kept[Record]], unread: Unread, wanted: Filter, likes: Sequence[Filter]
) -> tuple[StepFacts, set[int]]:
    """Return what a word on the command line names, and the batch sizes at which it was profiled. kept: the runs in the
    folder. wanted: a filter for modes; what it leaves open is taken from their first row in `compare`. likes: such work
    is preferred, the first most. Logs which measurement of a mode is used. Raises UsageError if the word names nothing,
    several, or no profile.
    """
    path = Path(name) if named.names_a_file(name) else None
    if path := path or named.by_id(name, {one.record.run_id: one.path for one in kept}):
        record = read_record(path)
        _require_profile(record, name)
        times = step_times(record)
        facts = facts_of(record, times.mean_s if times else None)
        return facts, {facts.batch_size}
    reference = named.parse_mode(name, results.instances_of(kept))
    of_mode = Filter(instance=reference.instance or None, mode=reference.mode, source="measured")
    records = [one for each in results.measured(kept, unread, of_mode) for one in each.rounds]
    executed = Filter(status="ok", execution=reference.execution).of(records)
    if executed and not wanted.of(executed):
        there = dict.fromkeys(work_of(record).words.removeprefix(" of ") for record in executed)
        raise UsageError(f"{name} has no record{wanted.words}", f"It has: {'; '.join(there)}")
    of_any_work = wanted.of(executed)
    fitting = next(filter(None, (one.of(of_any_work) for one in likes)), [])
    fitting = fitting or _of_one_workload(of_any_work, [one.record for one in kept])
    if not records and (stopped := of_mode.of(one.record for one in kept)):
        remedy = f"See why with `fp8bench compare {stopped[-1].instance}`"
        raise UsageError(f"{name} has no valid measurement", remedy)
    found = _profiled(fitting, load_catalog(results_dir))
    if fitting and not found:
        _require_profile(fitting[-1], name)
    if not found:
        ok = [record for record in Filter(status="ok").of(one.record for one in kept) if record.config]
        modes = {f"{one.instance}:{one.what.mode_label}{suffix(one.execution)}" for one in ok}
        known = ", ".join(sorted(modes)) or "no records"
        raise UsageError(f"no file, run or mode is called {name!r}", f"There are: {known}")
    if len(found) > 1:
        remedy = f"Choose one, as {next(iter(found))}:{name}"
        raise UsageError(f"{name} was profiled on {' and '.join(found)}", remedy)
    ((record, row),) = found.values()
    profiled_in = record.session.round if record.session else 1
    alike = [one for one in of_any_work if one.profile and one.what.workload == row.workload]
    sizes = {one.what.batch_size for one in alike if one.what.batch_size}
    others = sorted(sizes - {row.batch_size})
    log(
        f"{row.workload}, {row.variant_label} on {row.instance}: batch {row.batch_size} x "
        f"{workers(row.world_size, row.device)}, session {row.session_id or record.run_id}, "
        f"profile of round {profiled_in}"
        + (f"; --batch-size takes {' or '.join(map(str, others))} instead" if others else "")
    )
    return facts_of(record, row.step_time_s, row.times.by_elapsed if row.times else None), sizes


def _of_one_workload(records: Sequence[Record], every: Sequence[Record]) -> list[Record]:
    """Return those of the workload that most of all records are of, as `compare` chooses it."""
    there: dict[str, set[tuple[str, object]]] = {}
    for one in Filter(status="ok").of(every):
        there.setdefault(one.what.workload, set()).add((one.instance, (one.what.mode_label, one.what.batch_size)))
    by_work = grouped(records, lambda record: record.what.workload)
    return next((by_work[name] for name in broadest_first(there) if name in by_work), [])


def _profiled(records: Sequence[Record], catalog: Catalog) -> dict[str, tuple[Record, Row]]:
    """Return, by instance, `compare`'s first row that has a profile, and its profiled round nearest its step time."""
    found: dict[str, tuple[Record, Row]] = {}
    for instance, measured in grouped(records, lambda record: record.instance).items():
        reference = named.parse_reference(None, [instance])
        options = CompareOptions((instance,), date.today(), reference, allow_mismatch=True)
        for row in compare(measured, catalog, options).rows:
            if record := profiled(row):
                found.setdefault(instance, (record, row))
    return found


def _require_profile(record: Record, name: str) -> None:
    if record.status != "ok":
        raise UsageError(f"{name} is a record of status {record.status}: {record.reason}", "Name one that is ok")
    if record.source != "measured":
        raise UsageError(f"{name} is a {record.source} figure, which has no profile", "Name a measured record")
    if record.profile is None:
        remedy = f"Measure it again with `fp8bench run --mode {record.what.mode}`"
        raise UsageError(f"{name} was recorded without a profile", remedy)
