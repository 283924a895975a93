"""`fp8bench run`: prove, time and record one or more modes on this machine."""

import json
import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli.progress import listener, log

if TYPE_CHECKING:
    from fp8bench.launch.prepare import Prepared
    from fp8bench.launch.rounds import Schedule
    from fp8bench.schema.request import Resolved

OFF_UNLESS_SET = ("precision", "session", "name", "price")


def run(
    mode: list[str] = typer.Option(None, "--mode", help="Mode, with its recipe: te-fp8:current. Repeatable."),
    workload: str = typer.Option(None, "--workload", help="What to train [vit-huge; on a CPU vit-micro]."),
    instance: str = typer.Option(None, "--instance", help="Name in the catalogue, or auto [auto]."),
    gpus: str = typer.Option(None, "--gpus", metavar="N", help="Workers [all GPUs; on a CPU 2]."),
    batch_size: str = typer.Option(None, "--batch-size", metavar="N", help="Samples a worker [64; on a CPU 16]."),
    warmup: str = typer.Option(None, "--warmup", metavar="N", help="Steps before timing [11]."),
    steps: str = typer.Option(None, "--steps", metavar="N", help="Timed steps [40]."),
    compile: str = typer.Option(None, "--compile", metavar="auto|on|off", help="torch.compile [auto]."),
    data: str = typer.Option(
        None, "--data", metavar="loader|device", help="DataLoader, or one resident batch [loader]."
    ),
    workers: str = typer.Option(None, "--workers", metavar="N", help="DataLoader processes a worker [by cores]."),
    seed: str = typer.Option(None, "--seed", metavar="N", help="Of weights and data [0]."),
    te_attention: str = typer.Option(None, "--te-attention", metavar="te|sdpa", help="Attention of te modes [te]."),
    rounds: str = typer.Option(None, "--rounds", metavar="N", help="Fresh processes a mode [3; on a CPU 1]."),
    precision: str = typer.Option(
        None, "--precision", metavar="1%", help="More rounds until each interval's half-width is below this."
    ),
    max_rounds: str = typer.Option(None, "--max-rounds", metavar="N", help="With --precision: stop here [10]."),
    session: str = typer.Option(
        None, "--session", metavar="NAME|latest", help="Resume a session with its settings: its missing rounds are run."
    ),
    name: str = typer.Option(None, "--name", metavar="NAME", help="What to call this machine [by its identity]."),
    aa: bool = typer.Option(False, "--aa", help="Hold one mode against itself: must be inconclusive."),
    allow_busy: bool = typer.Option(False, "--allow-busy", help="Run on a GPU that others use, marked."),
    price: str = typer.Option(
        None, "--price", metavar="USD_PER_HOUR", help="Price of this machine, kept by its results."
    ),
    config: Path = typer.Option(None, "--config", metavar="FILE", help="YAML file with any of these."),
    results_dir: str = typer.Option(None, "--results-dir", metavar="DIR", help="Where records go [results]."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print every setting with its origin, and run nothing."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress; warnings and errors only."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as JSON."),
) -> None:
    """Train under each mode for some dozens of steps, in several fresh processes, and keep a record of each. A mode is
    proved before it is timed.
    """
    given = dict(locals())
    from fp8bench.launch.prepare import prepare, settle
    from fp8bench.schema.files import parse_mapping, read_text
    from fp8bench.schema.request import RunRequest, resolve

    flags = {name: given[name] for name in RunRequest.model_fields if given[name]}
    # Once, since a pipe (`--config <(...)`) has nothing left for a second reader.
    file_text = read_text(config) if config else ""
    file_values = parse_mapping(file_text, config) if config else {}
    resolved = resolve(flags, os.environ, file_values, str(config) if config else None, file_text)
    prepared = prepare(resolved.request, os.environ)
    resolved = resolved.resumed(prepared.resumed, prepared.session or "")
    if dry_run:
        _print_dry_run(resolved, prepared, as_json)
        return
    if prepared.keeps_records:
        settle(prepared, resolved.request.price, date.today(), log)
    raise typer.Exit(_measure_and_print(prepared, quiet, as_json))


def _measure_and_print(prepared: "Prepared", quiet: bool, as_json: bool) -> int:
    from fp8bench.launch.measure import measure, session
    from fp8bench.launch.session import exit_code

    with (
        session(prepared, log) as rounds,
        listener(rounds, quiet or not prepared.keeps_records) as told,
    ):
        records = [record for record, _ in measure(prepared, rounds, told)]
    if not records and prepared.keeps_records:
        log(f"nothing was left to run: session {rounds.session_id} has its rounds")
    if prepared.keeps_records and as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=1))
    elif prepared.keeps_records:
        _print_session(rounds.session_id, prepared)
    code = exit_code(records)
    return _judge_itself(rounds) if code == 0 and rounds.entries[0].arm else code


def _judge_itself(rounds: "Schedule") -> int:
    """A mode held against itself: whatever is not `inconclusive` convicts the machine, or the method."""
    from fp8bench.stats.ratio import ratio

    first, second = (rounds.estimate(entry) for entry in rounds.entries)
    if first is None or second is None:
        return 4
    found = ratio(second, first)
    label = rounds.entries[0].config.mode_label
    if found.low is None or found.high is None:
        log(f"{label} against itself: {found.why}. Use more --steps.")
        return 4
    what = f"{label} against itself: {found.value:.4f} ({found.low:.4f} to {found.high:.4f}), {found.verdict}"
    if found.verdict == "inconclusive":
        log(f"{what}, as it must be")
        return 0
    log(f"{what}. Nothing measured here can be believed: see `fp8bench doctor`, and use more rounds.")
    return 4


def _print_session(session_id: str, prepared: "Prepared") -> None:
    """The table of the whole session, with what was kept of it before this call."""
    from fp8bench.cli.broken import tell_broken
    from fp8bench.cli.catalog import load_catalog
    from fp8bench.cli.compare import print_comparison
    from fp8bench.report.compare import compare
    from fp8bench.report.options import CompareOptions, parse_reference
    from fp8bench.report.select import select
    from fp8bench.report.shown import read_shown
    from fp8bench.store import results

    key = prepared.instance.key
    found = results.read(prepared.results_dir, [key])
    of_session = tuple(
        kept
        for kept in found
        if kept.record.session
        and kept.record.session.session_id == session_id
        and not (prepared.here and prepared.here.unlike_place(kept.record))
    )
    if not of_session:
        return
    shown = read_shown(results.Found(of_session), lambda records: select(records, every=False))
    tell_broken(shown.broken)
    options = CompareOptions((key,), date.today(), parse_reference(None, [key]))
    catalog = load_catalog(prepared.results_dir)
    print_comparison(compare(shown.records, catalog, options, shown.whole), "table")


def _print_dry_run(resolved: "Resolved", prepared: "Prepared", as_json: bool) -> None:
    request = resolved.request.model_dump(mode="json")
    runs = [entry.config.model_dump(mode="json") for entry in prepared.entries]
    stop = prepared.stop
    if as_json:
        settings = {name: {"value": request[name], "origin": resolved.origins[name]} for name in request}
        typer.echo(
            json.dumps(
                {"settings": settings, "instance": prepared.instance.key, "rounds": stop.rounds, "runs": runs}, indent=1
            )
        )
        return
    from tabulate import tabulate

    asked = [(name, _shown(name, value), resolved.origins[name]) for name, value in request.items()]
    typer.echo(tabulate(asked, headers=["setting", "value", "origin"], disable_numparse=True))
    times = f"{stop.rounds} {'round' if stop.rounds == 1 else 'rounds'}"
    typer.echo(f"\ninstance: {prepared.instance.key}\nwould run {times} of these, each in fresh processes:\n")
    typer.echo(tabulate(runs, headers="keys", disable_numparse=True))


def _shown(name: str, value: object) -> object:
    """What is not set is left to the machine, but for a few settings that are then simply off."""
    if value not in (None, []):
        return value
    return "none" if name in OFF_UNLESS_SET else "by machine"
