"""`fp8bench list`: the modes, the workloads or what the model of one is made of, and the instances."""

import fnmatch
import json
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field, PositiveInt

from fp8bench import registry
from fp8bench.cli.options import AsJson, FormOfTables, argument, option, switch
from fp8bench.cli.output import load_catalog, require_read, show
from fp8bench.config.options import Folder
from fp8bench.entries import FamilyEntry, ModeEntry
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import CLASSES, IMAGE_SIZE, Option, flag_of
from fp8bench.tables.document import Cells, Table
from fp8bench.tables.render import plain


def modes(
    as_json: AsJson = False,
    fields: Annotated[bool, switch("--fields", "The fields of recipes, as in te-fp8:delayed,history=16.")] = False,
) -> None:
    """List the precision modes, their recipes, the default first, and with --fields what a recipe has."""
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


def workloads(
    name: Annotated[
        str | None,
        argument(
            "[NAME]", "Look at the model of this one; `timm` or a pattern as 'timm:eva*' lists timm's.", "workloads"
        ),
    ] = None,
    image_size: Annotated[
        PositiveInt | None, Option("Of timm:NAME [the model's own]", metavar="PIXELS", limit=IMAGE_SIZE)
    ] = None,
    classes: Annotated[
        Annotated[int, Field(ge=2)] | None,
        Option("Of timm:NAME [the model's own]", metavar="N", limit=CLASSES),
    ] = None,
    form: FormOfTables = "table",
    as_json: AsJson = False,
) -> None:
    """List the workloads, or look at what the model of one is made of."""
    if name is None:
        _list(as_json)
        return
    family, _, pattern = name.partition(":")
    if family in registry.FAMILIES and (not pattern or set(pattern) & set("*?[")):
        _list_members(registry.FAMILIES[family], pattern or "*", as_json)
        return
    _show(name, {"image_size": image_size, "classes": classes}, "json" if as_json else form)


def _list(as_json: bool) -> None:
    shown = list(registry.workloads().values())
    if as_json:
        print_json(shown, "name", "default_on", "summary")
        return
    rows = [(e.name, ", ".join(e.default_on), e.summary) for e in (*shown, registry.OWN_MODULE)]
    families = registry.FAMILIES.values()
    rows += [(f"{one.prefix}:NAME", "", f"{one.summary}: {one.prefix}:{one.example}") for one in families]
    print_table(rows, ["workload", "default on", "what it is"])


def _list_members(family: FamilyEntry, pattern: str, as_json: bool) -> None:
    found = [f"{family.prefix}:{one}" for one in fnmatch.filter(family.members(), pattern)]
    if not found:
        raise UsageError(
            f"no model of {family.prefix} has a name like {pattern!r}",
            f"See all with `fp8bench list workloads {family.prefix}`",
        )
    typer.echo(json.dumps(found, indent=1) if as_json else "\n".join(found))


def _show(name: str, given: dict[str, int | None], form: str) -> None:
    from fp8bench.cli.model import document

    entry = registry.find_workload(name)
    sizes = {setting: size for setting, size in given.items() if size is not None}
    for setting, size in sizes.items():
        if entry.defaults is not None and setting not in entry.defaults:
            flag = flag_of(setting)
            raise UsageError(f"{flag} {size} does not apply to {name!r}, whose sizes are its own", f"Omit {flag}")
    # Imported here: torch takes seconds, and a mistyped word should fail first.
    from fp8bench.numerics.model_facts import facts_of
    from fp8bench.workloads.resizable import as_named

    show(document(facts_of(as_named(registry.load(entry)(data="device", **sizes), name), name)), form)


def instances(
    as_json: Annotated[bool, switch("--json", "Print every price with its source, as JSON.")] = False,
    results_dir: Annotated[Folder, option("DIR", "Where own instances are.")] = Path("results"),
) -> None:
    """List the instances: GPUs, and the newest known on-demand price of each."""
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
    columns = (
        Cells(name, tuple(row[place] for row in rows), "quantity" if place == right else "word")
        for place, name in enumerate(headers)
    )
    typer.echo(plain(Table(tuple(columns))))


COMMANDS = {"modes": modes, "workloads": workloads, "instances": instances}
