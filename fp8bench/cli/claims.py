"""`fp8bench claims`: what articles and tutorials claim, next to what was measured here."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.options import Form, option, switch
from fp8bench.cli.output import load_catalog, require_read, show, tell_broken
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.claims.document import document
from fp8bench.kinds.run.claims.entry import load
from fp8bench.kinds.run.claims.evaluate import evaluate
from fp8bench.kinds.run.claims.layers import LayerErrors
from fp8bench.kinds.run.claims.rows import Tested
from fp8bench.pricing.catalog import find
from fp8bench.records import results
from fp8bench.records.named import parse_reference
from fp8bench.schema.files import CLAIMS_YAML
from fp8bench.schema.record import Record


def claims(
    instances: list[str] = typer.Argument(
        None, metavar="[INSTANCE]...", autocompletion=names.instances, help="Where to test them [all with records]."
    ),
    wanted: Annotated[
        list[str] | None, option("ID", "Only this claim; may be given several times.", names.claims, "--id")
    ] = None,
    file: Annotated[
        Path | None, option("FILE", "Claims of your own, as configs/claims.yaml, instead of those.", None, "--claims")
    ] = None,
    decided: Annotated[bool, switch("--decided", "Only what has a verdict.")] = False,
    form: Form = "table",
    results_dir: list[Path] = typer.Option(
        [Path("results")], "--results-dir", metavar="DIR", help="Where records are; may be given several times."
    ),
) -> None:
    catalog = load_catalog(results_dir)
    stated = load(catalog.instances, file or CLAIMS_YAML).of(wanted or ())
    measured = results.known_instances(results_dir)
    keys = tuple(
        dict.fromkeys(name if name in measured else find(catalog, name, measured).key for name in instances or ())
    )
    named = {name for one in stated.stated if one.test for name in one.test.instances}
    read = {*(keys or measured), *named}
    require_read(catalog, read)
    options = CompareOptions(keys, date.today(), parse_reference(None, [*keys, *sorted(read), ""]))

    def tested(records: list[Record], whole: Callable[[Record], Record]) -> Tested:
        return evaluate(stated, records, catalog, options, whole, layer_errors)

    layer_errors = _layer_errors(results_dir, read) if stated.of_layers else {}
    found = results.read_on_demand(results.read(results_dir, read), tell_broken, tested)
    show(document(found.decided() if decided else found, stated), form)


def _layer_errors(results_dir: list[Path], instances: set[str]) -> dict[str, list[LayerErrors]]:
    """Return the layer errors of the records of `fp8bench numerics`, by instance, oldest first."""
    model = registry.load(registry.find_kind("numerics")).record
    kept = results.read_kind(results_dir, instances, model)
    tell_broken(kept.broken)
    found: dict[str, list[LayerErrors]] = {}
    for record in kept:
        found.setdefault(record.instance, []).append(LayerErrors(record.run_id, record.rows))
    return found
