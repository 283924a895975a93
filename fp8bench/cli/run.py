"""`fp8bench run`: prove, time and record one or more modes on this machine."""

import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fp8bench.launch.executor import Executor
    from fp8bench.launch.prepare import Prepared
    from fp8bench.schema.config import RunConfig
    from fp8bench.schema.record import Record
    from fp8bench.schema.request import Resolved


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
    price: str = typer.Option(
        None, "--price", metavar="USD_PER_HOUR", help="Price of this machine, kept by its results."
    ),
    config: Path = typer.Option(None, "--config", metavar="FILE", help="YAML file with any of these."),
    results_dir: str = typer.Option(None, "--results-dir", metavar="DIR", help="Where records go [results]."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print every setting with its origin, and run nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as JSON."),
) -> None:
    """Train under each mode for some dozens of steps, and keep a record of each. A mode is proved before it is
    timed.
    """
    given = dict(locals())
    from fp8bench.launch.prepare import prepare, settle
    from fp8bench.launch.session import exit_code
    from fp8bench.schema.files import read_mapping, read_text
    from fp8bench.schema.request import RunRequest, resolve

    flags = {name: given[name] for name in RunRequest.model_fields if given[name]}
    file_values = read_mapping(config) if config else {}
    file_text = read_text(config) if config else ""
    resolved = resolve(flags, os.environ, file_values, str(config) if config else None, file_text)
    prepared = prepare(resolved.request, os.environ)
    if dry_run:
        _print_dry_run(resolved, prepared, as_json)
        return
    if prepared.keeps_records:
        settle(prepared, resolved.request.price, date.today())
    records = _measure(prepared)
    if prepared.keeps_records:
        _print_records(records, prepared, as_json)
    raise typer.Exit(exit_code(records))


def _measure(prepared: "Prepared") -> "list[Record]":
    from fp8bench.launch.session import measure_all

    records = []
    executor = _executor(prepared)
    for record, path in measure_all(
        prepared.configs, executor, prepared.instance.key, prepared.results_dir, _announcer(prepared)
    ):
        records.append(record)
        _log(f"{record.status}: {path}")
        if record.reason:
            _log(f"{record.reason}. {record.remedy}.")
        for warning in record.evidence.warnings if record.evidence else ():
            _log(f"warning: {warning}")
    return records


def _executor(prepared: "Prepared") -> "Executor":
    if prepared.elastic:
        from fp8bench.launch.elastic import ElasticExecutor

        return ElasticExecutor(prepared.elastic)
    from fp8bench.launch.spawn import SpawnExecutor

    return SpawnExecutor()


def _announcer(prepared: "Prepared") -> "Any":
    def announce(config: "RunConfig") -> None:
        if prepared.keeps_records:
            _log(
                f"{config.mode_label}: {config.workload}, batch {config.batch_size} x {config.world_size} "
                f"{'GPU' if config.device == 'cuda' else 'CPU process'}{'es' if config.device == 'cpu' else 's'}, "
                f"{config.warmup} + {config.steps} steps"
            )

    return announce


def _print_records(records: "list[Record]", prepared: "Prepared", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=1))
        return
    from fp8bench.cli.compare import load_catalog, print_comparison
    from fp8bench.report.compare import compare
    from fp8bench.report.options import CompareOptions, parse_reference

    key = prepared.instance.key
    options = CompareOptions((key,), date.today(), parse_reference(None, [key]), every=True)
    print_comparison(compare(records, load_catalog(prepared.results_dir), options), "table")


def _print_dry_run(resolved: "Resolved", prepared: "Prepared", as_json: bool) -> None:
    request = resolved.request.model_dump(mode="json")
    runs = [config.model_dump(mode="json") for config in prepared.configs]
    if as_json:
        settings = {name: {"value": request[name], "origin": resolved.origins[name]} for name in request}
        typer.echo(json.dumps({"settings": settings, "instance": prepared.instance.key, "runs": runs}, indent=1))
        return
    from tabulate import tabulate

    asked = [
        (name, "by machine" if value in (None, []) else value, resolved.origins[name])
        for name, value in request.items()
    ]
    typer.echo(tabulate(asked, headers=["setting", "value", "origin"], disable_numparse=True))
    typer.echo(f"\ninstance: {prepared.instance.key}\nwould run, each in fresh processes:\n")
    typer.echo(tabulate(runs, headers="keys", disable_numparse=True))


def _log(line: str) -> None:
    print(f"fp8bench: {line}", file=sys.stderr, flush=True)
