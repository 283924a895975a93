"""`fp8bench predict`: a step's time and its price-performance on an instance that the user does not have."""

from datetime import date
from pathlib import Path
from typing import Annotated, cast

import typer

from fp8bench.cli import names
from fp8bench.cli.options import PURCHASES, Form, Region, ResultsDir, Workload, choice, option
from fp8bench.cli.output import load_catalog, require_read, show, tell_broken
from fp8bench.cli.selection import day_of, of_one_workload
from fp8bench.config.words import whole
from fp8bench.predict.document import document
from fp8bench.predict.error import known
from fp8bench.predict.prediction import predictions, target
from fp8bench.predict.source import Sources, parse_source, sources, wanted
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, require_region
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.named import names_a_file
from fp8bench.records.results import read_record
from fp8bench.records.select import Measurement
from fp8bench.registry import find_workload
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog, Purchase
from fp8bench.schema.option import IMPORTED_BATCH_SIZE
from fp8bench.schema.record import Record


def predict(
    instance: str = typer.Argument(
        None, metavar="INSTANCE", autocompletion=names.instances, help="To predict: a name in the catalogue."
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
    form: Form = "table",
    results_dir: ResultsDir = Path("results"),
) -> None:
    if workload is not None:
        find_workload(workload)
    catalog = load_catalog(results_dir)
    if instance is None or source is None:
        missing = "no instance was named" if instance is None else "--from is missing"
        raise UsageError(missing, "Give both, as in `fp8bench predict p5 --from h200-1x`")
    require_read(catalog, [instance, source.partition("/")[0].partition(":")[0]])
    today = date.today()
    day = day_of(price_as_of, today) or today
    query = PriceQuery(day, day >= today, region, cast("Purchase", purchase), ANY_MACHINE)
    called = find(catalog, instance)
    require_region(region, catalog, [called.key])
    there = target(called, catalog, _whole("--gpus", gpus), query)
    found = _sources(source, workload, _whole("--batch-size", batch_size), catalog, results_dir)
    predicted = predictions(found, there, known(), catalog, query)
    show(document(predicted), form)
    if all(row.status == "unsupported" for row in predicted.rows):
        raise typer.Exit(ModeUnavailable.exit_code)


def _whole(flag: str, words: str | None) -> int | None:
    return None if words is None else whole(flag, words, 1, IMPORTED_BATCH_SIZE)


def _sources(name: str, workload: str | None, batch_size: int | None, catalog: Catalog, results_dir: Path) -> Sources:
    """Return what `--from` names: a record's file, or an instance's measurements, all or of one mode and variant.
    Without a workload, the one of most of its records.
    """
    if names_a_file(name):
        for flag, value in {"--batch-size": batch_size, "--workload": workload}.items():
            if value is not None:
                raise UsageError(f"{flag} does not apply to a record's file", f"Omit {flag}")
        return sources([Measurement((read_record(Path(name)),))], catalog)
    requested = parse_source(name, workload, batch_size)
    there = results.read(results_dir, {str(requested.instance)})
    requested = of_one_workload(requested, [one.record for one in there], "predicting")

    def shown(records: list[Record]) -> list[Record]:
        if not records:
            remedy = "Name one that has records with --from, or a record's file"
            raise results.nothing_found(f"for instance {requested.instance!r}", results_dir, remedy, RUN)
        return [record for one in wanted(records, requested) for record in one.rounds]

    return sources(wanted(results.sound(there, tell_broken, shown), requested), catalog)
