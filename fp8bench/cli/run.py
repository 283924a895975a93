"""`fp8bench run`: prove, time and record one or more modes on this machine."""

import json
import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli import names
from fp8bench.cli.progress import listener, log

if TYPE_CHECKING:
    from fp8bench.launch.prepare import Prepared
    from fp8bench.launch.rounds import Schedule


def run(
    mode: list[str] = typer.Option(
        None,
        "--mode",
        metavar="MODE",
        autocompletion=names.modes,
        help="Precision mode to measure, with its recipe if not the default: te-fp8:current. Repeat for several "
        "[every default mode of this machine].",
    ),
    workload: str = typer.Option(
        None,
        "--workload",
        metavar="NAME",
        autocompletion=names.workloads,
        help="Model to train [vit-huge; on a CPU vit-micro].",
    ),
    instance: str = typer.Option(
        None,
        "--instance",
        metavar="NAME|auto",
        autocompletion=names.instances,
        help="Name of this machine in the catalogue [auto].",
    ),
    gpus: str = typer.Option(None, "--gpus", metavar="N", help="GPUs to train on [all; on a CPU 2 processes]."),
    batch_size: str = typer.Option(None, "--batch-size", metavar="N", help="Samples a GPU and step [64; on a CPU 16]."),
    warmup: str = typer.Option(None, "--warmup", metavar="N", help="Steps before timing starts [11]."),
    steps: str = typer.Option(None, "--steps", metavar="N", help="Timed steps [40]."),
    compile: str = typer.Option(
        None,
        "--compile",
        metavar="auto|on|off",
        autocompletion=names.one_of("auto", "on", "off"),
        help="Use torch.compile: auto compiles the modes that gain by it [auto].",
    ),
    data: str = typer.Option(
        None,
        "--data",
        metavar="loader|device",
        autocompletion=names.one_of("loader", "device"),
        help="Read batches with a DataLoader, or keep one on the GPU [loader].",
    ),
    workers: str = typer.Option(None, "--workers", metavar="N", help="DataLoader processes a GPU [by CPU cores]."),
    seed: str = typer.Option(None, "--seed", metavar="N", help="Seed of weights and data [0]."),
    te_attention: str = typer.Option(
        None,
        "--te-attention",
        metavar="te|sdpa",
        autocompletion=names.one_of("te", "sdpa"),
        help="Attention of the te modes: Transformer Engine's or torch's [te].",
    ),
    rounds: str = typer.Option(
        None, "--rounds", metavar="N", help="Rounds: each runs every mode in fresh processes [3; on a CPU 1]."
    ),
    precision: str = typer.Option(
        None, "--precision", metavar="1%", help="Add rounds until each interval's half-width is below this share."
    ),
    max_rounds: str = typer.Option(None, "--max-rounds", metavar="N", help="With --precision: stop here [10]."),
    session: str = typer.Option(
        None, "--session", metavar="NAME|latest", help="Resume a session: only its missing rounds are run."
    ),
    aa: bool = typer.Option(False, "--aa", help="Compare one mode with itself: must be inconclusive."),
    allow_busy: bool = typer.Option(False, "--allow-busy", help="Run on a GPU that others use too; marked."),
    price: str = typer.Option(
        None, "--price", metavar="USD_PER_HOUR", help="Price of the whole machine, not of one GPU; kept by its results."
    ),
    price_per_gpu: str = typer.Option(
        None, "--price-per-gpu", metavar="USD_PER_HOUR", help="Price of one GPU, times the GPUs of the machine."
    ),
    config: Path = typer.Option(None, "--config", metavar="FILE", help="YAML file with any of these settings."),
    results_dir: str = typer.Option(
        None, "--results-dir", metavar="DIR", help="Folder in which records are kept [results]."
    ),
    dry_run: bool = typer.Option(
        False,
        "--dry-run",
        help="Print every setting with its origin, what cannot run here, and the time and cost; run nothing.",
    ),
    quiet: bool = typer.Option(False, "--quiet", help="No progress; warnings and errors only."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as JSON."),
) -> None:
    """Train a model for some dozens of steps in each precision mode, in several fresh processes, and keep a record of
    each. A mode is first proved to compute what the plain model does, then timed.
    """
    given = dict(locals())
    from fp8bench.launch.plan import hourly_price
    from fp8bench.launch.prepare import prepare, settle
    from fp8bench.schema.files import parse_mapping, read_text
    from fp8bench.schema.request import RunRequest, resolve

    flags = {name: given[name] for name in RunRequest.model_fields if given.get(name) not in (None, False, [])}
    # Once, since a pipe (`--config <(...)`) has nothing left for a second reader.
    file_text = read_text(config) if config else ""
    file_values = parse_mapping(file_text, config) if config else {}
    resolved = resolve(flags, os.environ, file_values, str(config) if config else None, file_text)
    request = resolved.request
    prepared = prepare(request, os.environ)
    price_of_machine = hourly_price(request, prepared.instance)
    if dry_run:
        from fp8bench.cli.dry_run import print_dry_run

        print_dry_run(resolved, prepared, price_of_machine, as_json)
        return
    if prepared.keeps_records:
        settle(prepared, price_of_machine, date.today())
    raise typer.Exit(_measure_and_print(prepared, bool(request.mode), quiet, as_json))


def _measure_and_print(prepared: "Prepared", named: bool, quiet: bool, as_json: bool) -> int:
    """named: the modes were, so that each is meant to run."""
    from fp8bench.launch.measure import measure, schedule
    from fp8bench.launch.session import exit_code

    rounds = schedule(prepared)
    with listener(rounds, quiet or not prepared.keeps_records) as told:
        records = [record for record, _ in measure(prepared, rounds, told)]
    if not records and prepared.keeps_records:
        log(f"nothing was left to run: session {rounds.session_id} has its rounds")
    if prepared.keeps_records and as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=1))
    elif prepared.keeps_records:
        _print_session(rounds.session_id, prepared)
    code = exit_code(records, named)
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
    from fp8bench.cli.catalog import load_catalog
    from fp8bench.cli.compare import print_comparison
    from fp8bench.report.compare import compare
    from fp8bench.report.options import CompareOptions, parse_reference
    from fp8bench.store import results

    key = prepared.instance.key
    kept = results.read(prepared.results_dir, [key])
    paths = {record.run_id: path for record, path in kept}
    records = [record for record, _ in kept if record.session and record.session.session_id == session_id]
    if not records:
        return
    options = CompareOptions((key,), date.today(), parse_reference(None, [key]))
    catalog = load_catalog(prepared.results_dir)
    print_comparison(compare(records, catalog, options, lambda r: results.read_record(paths[r.run_id])), "table")
