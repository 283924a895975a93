"""`fp8bench workloads`: lists workloads or a family's members (`timm`), or shows what a model consists of."""

import fnmatch
import json

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.listings import print_json, print_table
from fp8bench.cli.options import FormOfTables
from fp8bench.cli.output import show
from fp8bench.entries import FamilyEntry
from fp8bench.schema.errors import UsageError


def workloads(
    name: str = typer.Argument(
        None,
        metavar="[NAME]",
        autocompletion=names.workloads,
        help="Look at the model of this one; `timm` or a pattern as 'timm:eva*' lists timm's.",
    ),
    image_size: str = typer.Option(None, "--image-size", metavar="PIXELS", help="Of timm:NAME [the model's own]."),
    classes: str = typer.Option(None, "--classes", metavar="N", help="Of timm:NAME [the model's own]."),
    form: FormOfTables = "table",
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
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
    rows = [(e.name, ", ".join(e.default_on), e.summary) for e in shown]
    rows += [(f"{one.prefix}:NAME", "", f"{one.summary}: {one.prefix}:{one.example}") for one in _families()]
    print_table(rows, ["workload", "default on", "what it is"])


def _families() -> list[FamilyEntry]:
    return list(registry.FAMILIES.values())


def _list_members(family: FamilyEntry, pattern: str, as_json: bool) -> None:
    found = [f"{family.prefix}:{one}" for one in fnmatch.filter(family.members(), pattern)]
    if not found:
        raise UsageError(
            f"no model of {family.prefix} has a name like {pattern!r}",
            f"See all with `fp8bench workloads {family.prefix}`",
        )
    typer.echo(json.dumps(found, indent=1) if as_json else "\n".join(found))


def _show(name: str, given: dict[str, str | None], form: str) -> None:
    from fp8bench.config.request import OBEYED_BY_WORKERS
    from fp8bench.config.words import whole
    from fp8bench.report.model import document
    from fp8bench.schema.option import flag_of

    entry = registry.find_workload(name)
    sizes = {}
    for setting, word in given.items():
        flag, limit = flag_of(setting), OBEYED_BY_WORKERS[setting].limit
        if word is None or limit is None:
            continue
        sizes[setting] = whole(flag, word, 1 if setting == "image_size" else 2, limit)
        if entry.defaults is not None and setting not in entry.defaults:
            raise UsageError(f"{flag} {word} does not apply to {name!r}, whose sizes are its own", f"Omit {flag}")
    # Imported here: torch takes seconds, and a mistyped word should fail first.
    from fp8bench.numerics.model_facts import facts_of
    from fp8bench.workloads.resizable import as_named

    show(document(facts_of(as_named(registry.load(entry)(data="device", **sizes), name), name)), form)
