"""`fp8bench workloads`: what can be trained, without importing any of it."""

import json

import typer


def workloads(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the workloads."""
    from fp8bench import registry

    shown = registry.workloads().values()
    if as_json:
        rows = [{"name": e.name, "default_on": e.default_on, "summary": e.summary} for e in shown]
        typer.echo(json.dumps(rows, indent=1))
        return
    from tabulate import tabulate

    table = [(e.name, ", ".join(e.default_on), e.summary) for e in shown]
    typer.echo(tabulate(table, headers=["workload", "default on", "what it is"]))
