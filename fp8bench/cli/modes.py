"""`fp8bench modes`: every precision mode, without importing any."""

import json

import typer


def modes(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the precision modes and their recipes, the default recipe first."""
    from fp8bench import registry

    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    if as_json:
        rows = [{"name": e.name, "recipes": e.recipes, "default_on": e.default_on, "summary": e.summary} for e in shown]
        typer.echo(json.dumps(rows, indent=1))
        return
    from tabulate import tabulate

    table = [
        (e.name, ", ".join(e.recipes) if e.recipes is not None else "its own", ", ".join(e.default_on), e.summary)
        for e in shown
    ]
    typer.echo(tabulate(table, headers=["mode", "recipes", "runs by default on", "what it is"]))
