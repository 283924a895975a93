"""`fp8bench predict`: a step's time and its price-performance on an instance that the user does not have."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, cast

import typer

from fp8bench.cli import names
from fp8bench.cli.options import PURCHASES, Form, Region, ResultsDir, Workload, choice, option, switch
from fp8bench.cli.output import load_catalog, require_read, show, tell_broken
from fp8bench.cli.selection import day_of, of_one_workload
from fp8bench.config.words import whole
from fp8bench.predict.document import document, document_of_errors
from fp8bench.predict.held_out import HeldOut, held_out, kept
from fp8bench.predict.model_error import merged
from fp8bench.predict.pairs import limits, merged_pairs
from fp8bench.predict.prediction import predictions
from fp8bench.predict.source import Sources, parse_source, sources, wanted
from fp8bench.predict.target import Target, target
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, require_region
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.named import names_a_file
from fp8bench.records.results import read_record
from fp8bench.records.select import Filter, Measurement
from fp8bench.registry import find_workload
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog, Purchase
from fp8bench.schema.option import IMPORTED_BATCH_SIZE
from fp8bench.schema.record import Record


def predict(
    instance: str = typer.Argument(
        None, metavar="[INSTANCE]", autocompletion=names.instances, help="To predict: a name in the catalogue."
    ),
    source: Annotated[
        str | None,
        option(
            "INSTANCE[:MODE[:RECIPE]][/VARIANT]|FILE",
            "Whose records to predict from, all modes or one; or a record's file.",
            names.references,
            "--from",
        ),
    ] = None,
    gpus: Annotated[str | None, option("N", "How many of its GPUs train [all].")] = None,
    batch_size: Annotated[str | None, option("N", "Only records of this batch size a GPU.")] = None,
    workload: Workload = None,
    price_as_of: Annotated[str | None, option("DATE|today", "Prices of this day [today].")] = None,
    region: Region = None,
    purchase: Annotated[str, choice("--purchase", PURCHASES, "How the instance is bought.")] = PURCHASES[0],
    check: Annotated[
        bool, switch("--check", "Show how far the model is off for machines whose records are here, and end.")
    ] = False,
    form: Form = "table",
    results_dir: ResultsDir = Path("results"),
) -> None:
    if workload is not None:
        find_workload(workload)
    catalog = load_catalog(results_dir)
    if check:
        beside = {"INSTANCE": instance, "--from": source, "--gpus": gpus, "--batch-size": batch_size}
        _refuse_beside("--check", {**beside, "--workload": workload, "--region": region, "--price-as-of": price_as_of})
        _, others = _read(None, catalog, results_dir)
        show(document_of_errors(others), form)
        return
    if instance is None or source is None:
        missing = "no instance was named" if instance is None else "--from is missing"
        raise UsageError(missing, "Give both, as in `fp8bench predict p5 --from h200-1x`, or --check alone")
    require_read(catalog, [instance, source.partition("/")[0].partition(":")[0]])
    query = _query(price_as_of, region, purchase)
    target = _target(instance, _whole("--gpus", gpus), catalog, query)
    sources, others = _sources(source, workload, batch_size, catalog, results_dir)
    known = kept()
    of_kernels = limits(merged_pairs(known.pairs, others.pairs), catalog.gpus)
    predicted = predictions(sources, target, merged(known.cases, others.cases), of_kernels, catalog, query)
    show(document(predicted), form)
    if all(row.status == "unsupported" for row in predicted.rows):
        raise typer.Exit(ModeUnavailable.exit_code)


def _refuse_beside(what: str, given: dict[str, object]) -> None:
    """Raise UsageError if an option was given that cannot be combined with `what`."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} does not apply to {what}", f"Omit {name}")


def _whole(flag: str, words: str | None) -> int | None:
    return None if words is None else whole(flag, words, 1, IMPORTED_BATCH_SIZE)


def _query(price_as_of: str | None, region: str | None, purchase: str) -> PriceQuery:
    """Return the query for the predicted and for the measured instance."""
    today = date.today()
    day = day_of(price_as_of, today) or today
    return PriceQuery(day, day >= today, region, cast("Purchase", purchase), ANY_MACHINE)


def _target(name: str, gpus: int | None, catalog: Catalog, query: PriceQuery) -> Target:
    instance = find(catalog, name)
    require_region(query.region, catalog, [instance.key])
    return target(instance, catalog, gpus, query)


def _sources(
    name: str, workload: str | None, batch_words: str | None, catalog: Catalog, results_dir: Path
) -> tuple[Sources, HeldOut]:
    """Return what `--from` names: a record's file, or an instance's measurements, all or of one mode and variant."""
    if names_a_file(name):
        _refuse_beside("a record's file", {"--batch-size": batch_words, "--workload": workload})
        found = sources([Measurement((read_record(Path(name)),))], catalog, lambda one: one)
        return found, _read(None, catalog, results_dir)[1]
    requested = parse_source(name, workload, _whole("--batch-size", batch_words))
    return _read(requested, catalog, results_dir)


def _read(requested: Filter | None, catalog: Catalog, results_dir: Path) -> tuple[Sources, HeldOut]:
    """Return what a prediction can be made from, among the requested records; and machines predicted from one another,
    from all records here and the published figures that come with the program. requested: None to request no records;
    without a workload, the one of most of its records.
    """
    there = results.read(results_dir, {*results.known_instances(results_dir), *catalog.instances})
    if requested is not None:
        requested = of_one_workload(requested, [one.record for one in there], "predicting")

    def found(records: list[Record], whole: Callable[[Record], Record]) -> tuple[Sources, HeldOut]:
        others = held_out(records, catalog, whole, kept().pairs)
        if requested is None:
            return Sources((), ()), others
        of_instance = Filter(instance=requested.instance).of(records)
        if not of_instance:
            remedy = "Name one that has records with --from, or a record's file"
            raise results.nothing_found(f"for instance {requested.instance!r}", results_dir, remedy, RUN)
        return sources(wanted(of_instance, requested), catalog, whole), others

    return results.read_on_demand(there, tell_broken, found)
