"""`fp8bench run`: prove, time and record one or more modes on this machine; and `fp8bench import`: put a figure from
elsewhere beside them, which never passes for measured.
"""

import json
import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fp8bench.cli.output import load_catalog, log, show, tell_broken
from fp8bench.cli.progress import listener

if TYPE_CHECKING:
    from fp8bench.config.sources import Resolved
    from fp8bench.launch.nodes.leader import Leader
    from fp8bench.launch.nodes.place import Elastic
    from fp8bench.launch.prepare import Prepared
    from fp8bench.launch.rounds import Schedule
    from fp8bench.remote.mirror import Mirror


def run(
    config: Path = typer.Option(None, "--config", metavar="FILE", help="YAML file with any of these settings."),
    dry_run: bool = typer.Option(
        False,
        "--dry-run",
        help="Print every setting with its origin, what cannot run here, and the time and cost; run nothing.",
    ),
    quiet: bool = typer.Option(False, "--quiet", help="No progress; warnings and errors only."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as JSON."),
    **settings: Any,
) -> None:
    """Train a model for a hundred steps or more in each precision mode, in several fresh processes, and keep a record
    of each. A mode is first proved to compute what the plain model does, then timed.
    """
    from fp8bench.cli.nodes import as_torchrun_has_it
    from fp8bench.cli.remote import synced
    from fp8bench.config.sources import resolve
    from fp8bench.schema.files import parse_mapping, read_text

    with as_torchrun_has_it(os.environ, alone=dry_run) as (place, group):
        flags = {name: value for name, value in settings.items() if value not in (None, False, [])}
        # Once, since a pipe (`--config <(...)`) has nothing left for a second reader.
        file_text = read_text(config) if config else ""
        file_values = parse_mapping(file_text, config) if config else {}
        resolved = resolve(flags, os.environ, file_values, str(config) if config else None, file_text)
        leader = group.meet(resolved.request) if group is not None else None
        with synced(resolved.request.results_dir, measuring=True) as mirror:
            _run(resolved, mirror, dry_run, quiet, as_json, place, leader)


def _run(
    resolved: "Resolved",
    mirror: "Mirror | None",
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    place: "Elastic | None",
    leader: "Leader | None",
) -> None:
    """mirror: of the results' address, if that is where they are kept. place: under torchrun. leader: of several
    nodes.
    """
    from fp8bench.launch.place import settle
    from fp8bench.launch.plan import hourly_price
    from fp8bench.launch.prepare import prepare

    prepared = prepare(resolved.request, os.environ, place, leader)
    named = bool(resolved.request.mode)
    resolved = resolved.resumed(prepared.resumed, prepared.session or "")
    price_of_machine = hourly_price(resolved.request, prepared.instance)
    if dry_run:
        from fp8bench.cli.dry_run import print_dry_run

        print_dry_run(resolved, prepared, price_of_machine, as_json)
        return
    settle(prepared, price_of_machine, date.today(), log)
    raise typer.Exit(_measure_and_print(prepared, mirror, named, quiet, as_json))


def _measure_and_print(prepared: "Prepared", mirror: "Mirror | None", named: bool, quiet: bool, as_json: bool) -> int:
    """named: the modes were, so that each is meant to run."""
    from fp8bench.cli.remote import send_one
    from fp8bench.launch.session import exit_code, measure, session

    with (
        session(prepared, log) as rounds,
        listener(rounds, quiet) as listening,
    ):
        tell = log if not quiet else lambda _line: None
        records, reached = [], mirror is not None
        for record, path in measure(prepared, rounds, listening, say=tell):
            records.append(record)
            # At once, since a machine may be taken away; a remote that fails is not waited for again.
            if mirror is not None and reached and path is not None:
                reached = send_one(mirror, path)
    if not records:
        log(f"nothing was left to run: session {rounds.session_id} has its rounds")
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=1))
    else:
        _print_session(rounds.session_id, prepared)
    _say_whether_precise(rounds)
    code = exit_code(records, named)
    return _judge_itself(rounds) if code == 0 and rounds.entries[0].arm else code


def _say_whether_precise(rounds: "Schedule") -> None:
    """With --precision: what is still too wide after the last round."""
    precision = rounds.stop.precision
    if precision is None or rounds.precise():
        return
    found = [(entry.label, rounds.estimate(entry)) for entry in rounds.entries]
    widths = [f"{label} {each.half_width_share * 100:.1f} %" for label, each in found if each and each.half_width_share]
    log(
        f"--precision {precision * 100:g}% is not reached after {rounds.stop.max_rounds} rounds: half-widths are "
        f"{', '.join(widths) or 'unknown'}. Raise --max-rounds, or find out why processes differ: `fp8bench doctor`."
    )


def _judge_itself(rounds: "Schedule") -> int:
    """Modes compared with themselves: differences found there convict the machine, or the method's intervals."""
    from fp8bench.stats.ratio import LIMIT

    check = rounds.self_check()
    if check is None:
        log("the A/A test has too few processes or steps to judge by. Use more --rounds or --steps.")
        return 4
    compared = rounds.arms_compared()
    for label, held in compared:
        log(f"{label} compared with itself: {held.value:.4f} ({held.low:.4f} to {held.high:.4f}), {held.verdict}")
    convicted = [label for label, held in compared if held.verdict != "inconclusive"]
    what = (
        f"{check.excluding} of {check.splits} ways to split the processes of a mode look like a difference "
        f"({check.share * 100:.0f} %, at most {LIMIT * 100:.0f} %)"
    )
    if check.passed and not convicted:
        log(f"{what}: the A/A test passes")
        return 0
    log(f"{what}: the A/A test fails. No interval measured here can be trusted: see `fp8bench doctor`.")
    return 4


def _print_session(session_id: str, prepared: "Prepared") -> None:
    """The table of the whole session, with what was kept of it before this call."""
    from fp8bench.kinds.kind import CompareOptions
    from fp8bench.kinds.run.compare import compare
    from fp8bench.kinds.run.document import document
    from fp8bench.records import results
    from fp8bench.records.named import parse_reference
    from fp8bench.records.select import Filter

    key = prepared.instance.key
    found = results.read(prepared.results_dir, [key])
    of_session = tuple(
        kept
        for kept in found
        if Filter(session=session_id).takes(kept.record)
        and not (prepared.here and prepared.here.unlike_place(kept.record))
    )
    if not of_session:
        return
    options = CompareOptions((key,), date.today(), parse_reference(None, [key]))
    catalog = load_catalog(prepared.results_dir)
    shown = results.read_on_demand(
        results.Found(of_session), tell_broken, lambda records, whole: compare(records, catalog, options, whole)
    )
    show(document(shown), "table")


def import_figure(
    instance: str = typer.Option(..., "--instance", help="Name in the catalogue."),
    mode: str = typer.Option(..., "--mode", help="Mode, with its recipe where known."),
    step_time: str = typer.Option(..., "--step-time", metavar="SECONDS", help="Of one step."),
    batch_size: str = typer.Option(..., "--batch-size", metavar="N", help="Samples a GPU and step."),
    gpus: str = typer.Option(..., "--gpus", metavar="N", help="GPUs over all."),
    source: str = typer.Option(..., "--source", help="Where the figure is from: a title, an address."),
    published_on: str = typer.Option(
        None, "--published-on", metavar="DATE", help="Makes it `published`, priced for that day; else `external`."
    ),
    workload: str = typer.Option("vit-huge", "--workload", help="What was trained."),
    compile: bool = typer.Option(None, "--compile/--no-compile", help="Whether torch.compile was on [unknown]."),
    attention: str = typer.Option(None, "--attention", help="Attention implementation [unknown]."),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are."),
) -> None:
    """Import a step time from an article or another tool, always marked as such."""
    from fp8bench.kinds.run.choice import notices
    from fp8bench.launch.imported import ImportedFigure, doubts, to_record
    from fp8bench.pricing.catalog import find, require_read
    from fp8bench.records import results
    from fp8bench.schema.errors import inert

    figure = ImportedFigure.parse(
        mode=mode,
        workload=workload,
        step_time_s=step_time,
        batch_size=batch_size,
        gpus=gpus,
        source=source,
        published_on=published_on,
        compile=compile,
        attention=attention,
    )
    catalog = load_catalog(results_dir)
    require_read(catalog, [instance])
    key = find(catalog, instance, results.known_instances(results_dir)).key
    require_read(catalog, [key])
    results.require_writable(results_dir)
    record = to_record(figure, key)
    kept = [one.record for one in results.read(results_dir, [key])]
    typer.echo(results.write(record, results_dir))
    for warning in (*doubts(figure, key, catalog), *notices(record, kept)):
        log(f"warning: {inert(warning)}")
