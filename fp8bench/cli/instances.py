"""`fp8bench instances`: the catalogue with today's prices."""

import json
from datetime import date
from pathlib import Path

import typer


def instances(
    as_json: bool = typer.Option(False, "--json", help="Print every price with its source, as JSON."),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where own instances are."),
) -> None:
    """List the instances: GPUs, and the newest known on-demand price of each."""
    from fp8bench.cli.output import load_catalog, require_read
    from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, choose

    catalog = load_catalog(results_dir)
    require_read(catalog, ())
    if as_json:
        typer.echo(json.dumps([i.model_dump(mode="json") for i in catalog.instances.values()], indent=1))
        return
    from tabulate import tabulate

    today = PriceQuery(as_of=date.today(), current=True, machine=ANY_MACHINE)
    table = []
    for instance in catalog.instances.values():
        price = choose(instance.prices, today)
        cost = f"{price.usd_per_hour:,.2f}" if price and price.usd_per_hour else "-"
        day = "-" if price is None else str(price.as_of or "undated")
        gpus = f"{instance.gpu_count} x {instance.gpu}" if instance.gpu_count else "none"
        table.append((instance.key, instance.provider or "-", instance.instance_type or "-", gpus, cost, day))
    headers = ["instance", "provider", "type", "GPUs", "USD/h", "price as of"]
    align = ("left", "left", "left", "left", "right", "left")
    typer.echo(tabulate(table, headers=headers, colalign=align, disable_numparse=True))
