"""`fp8bench predict`: a step's time and its price-performance on an instance that the user does not have."""

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from pydantic import PositiveInt

from fp8bench.cli.options import Form, HowBought, PriceAsOf, Region, ResultsDir, Workload, argument, option
from fp8bench.cli.output import load_catalog, log, require_read, show, tell_broken
from fp8bench.cli.selection import BatchSize
from fp8bench.predict.document import document
from fp8bench.predict.prediction import predictions, target
from fp8bench.predict.source import Sources, parse_source, sources, wanted
from fp8bench.predict.step import known
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, require_region
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.select import Filter
from fp8bench.registry import find_workload
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.option import IMPORTED_BATCH_SIZE, Option
from fp8bench.schema.record import Record


def predict(
    instance: Annotated[str | None, argument("INSTANCE", "To predict: a name in the catalogue.")] = None,
    source: Annotated[
        str | None,
        option("INSTANCE[:MODE[:RECIPE]][/VARIANT]", "Whose records to predict from.", "--from"),
    ] = None,
    gpus: Annotated[
        PositiveInt | None, Option("How many of its GPUs train [all]", metavar="N", limit=IMPORTED_BATCH_SIZE)
    ] = None,
    batch_size: BatchSize = None,
    workload: Workload = None,
    price_as_of: PriceAsOf = None,
    region: Region = None,
    purchase: HowBought = "on_demand",
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
    day = price_as_of or today
    query = PriceQuery(day, day >= today, region, purchase, ANY_MACHINE)
    called = find(catalog, instance)
    require_region(region, catalog, [called.key])
    there = target(called, catalog, gpus, query)
    found = _sources(parse_source(source, workload, batch_size), catalog, results_dir)
    predicted = predictions(found, there, known(), catalog, query)
    show(document(predicted), form)
    if all(row.status == "unsupported" for row in predicted.rows):
        raise typer.Exit(ModeUnavailable.exit_code)


def _sources(requested: Filter, catalog: Catalog, results_dir: Path) -> Sources:
    """Return the sources of an instance; without a workload, those of most of its records."""
    there = results.read(results_dir, {str(requested.instance)})
    # Rows of several workloads are not comparable.
    every = Counter(record.what.workload for record in replace(requested, status="ok").of(one.record for one in there))
    if requested.workload is None and len(every) > 1:
        (most, _), *others = every.most_common()
        requested = replace(requested, workload=most)
        named = ", ".join(sorted(name for name, _ in others))
        log(f"predicting {most}, the workload of most records; --workload chooses another ({named})")

    def shown(records: list[Record]) -> list[Record]:
        if not records:
            remedy = "Name one that has records with --from"
            raise results.nothing_found(f"for instance {requested.instance!r}", results_dir, remedy, RUN)
        return [record for one in wanted(records, requested) for record in one.rounds]

    return sources(wanted(results.sound(there, tell_broken, shown), requested), catalog)
