"""Commands that list modes and instances."""

import json
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import typer

from fp8bench import registry
from fp8bench.cli.output import load_catalog, require_read
from fp8bench.entries import ModeEntry
from fp8bench.report.render.aligned import aligned


def modes(
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    fields: bool = typer.Option(False, "--fields", help="The fields of recipes, as in te-fp8:delayed,history=16."),
) -> None:
    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    if fields:
        _recipe_fields(shown, as_json)
        return
    if as_json:
        print_json(shown, "name", "recipes", "default_on", "summary")
        return
    table = [
        (e.name, ", ".join(e.recipes) if e.recipes is not None else "its own", ", ".join(e.default_on), e.summary)
        for e in shown
    ]
    print_table(table, ["mode", "recipes", "runs by default on", "what it is"])


def _recipe_fields(shown: Sequence[ModeEntry], as_json: bool) -> None:
    """Print each field once, with the recipes that have it."""
    from fp8bench.schema.recipe import FIELDS

    rows = []
    for field in FIELDS.values():
        recipes = [(e.name, r) for e in shown for r, names in e.recipe_fields.items() if field.name in names]
        others = [f"of {recipe} {default}" for recipe, default in field.defaults.items()]
        of = ", ".join(dict.fromkeys(recipe for _, recipe in recipes))
        rows.append((field.name, of, field.takes, ", ".join([field.default, *others]), field.upstream, field.help))
    headers = ["field", "of recipes", "takes", "default", "in --recipe FILE", "what it is"]
    if as_json:
        typer.echo(json.dumps([dict(zip(headers, row, strict=True)) for row in rows], indent=1))
        return
    print_table(rows, headers)


def instances(
    as_json: bool = typer.Option(False, "--json", help="Print every price with its source, as JSON."),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where own instances are."),
) -> None:
    from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, choose

    catalog = load_catalog(results_dir)
    require_read(catalog, ())
    if as_json:
        typer.echo(json.dumps([i.model_dump(mode="json") for i in catalog.instances.values()], indent=1))
        return
    today = PriceQuery(as_of=date.today(), current=True, machine=ANY_MACHINE)
    table = []
    for instance in catalog.instances.values():
        price = choose(instance.prices, today)
        cost = f"{price.usd_per_hour:,.2f}" if price and price.usd_per_hour else "-"
        day = "-" if price is None else str(price.as_of or "undated")
        gpus = f"{instance.gpu_count} x {instance.gpu}" if instance.gpu_count else "none"
        table.append((instance.key, instance.provider or "-", instance.instance_type or "-", gpus, cost, day))
    print_table(table, ["instance", "provider", "type", "GPUs", "USD/h", "price as of"], right=4)


def print_json(entries: Iterable[object], *fields: str) -> None:
    typer.echo(json.dumps([{name: getattr(entry, name) for name in fields} for entry in entries], indent=1))


def print_table(rows: Sequence[tuple[str, ...]], headers: list[str], right: int | None = None) -> None:
    """Print a table. right: the index of the column of numbers."""
    typer.echo(aligned(rows, [place == right for place in range(len(headers))], "simple", headers))
