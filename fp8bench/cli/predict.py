"""`fp8bench predict`: a step's time and its price-performance on an instance that the user does not have."""

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from pydantic import PositiveInt

from fp8bench.cli.options import (
    BatchSize,
    Form,
    HowBought,
    PriceAsOf,
    Region,
    ResultsDir,
    Unread,
    Workload,
    argument,
    option,
)
from fp8bench.cli.output import load_catalog, log, require_read, show
from fp8bench.kinds.kind import CompareOptions
from fp8bench.predict.document import document, predictions
from fp8bench.predict.prediction import sources, target
from fp8bench.predict.step import known
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import require_region
from fp8bench.records import results
from fp8bench.records.layout import RUN
from fp8bench.records.named import parse_reference
from fp8bench.records.select import Filter
from fp8bench.registry import find_workload
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.execution import split_variant
from fp8bench.schema.option import GPUS, Option


def predict(
    instance: Annotated[str | None, argument("INSTANCE", "To predict: a name in the catalogue.")] = None,
    source: Annotated[
        str | None,
        option("INSTANCE[:MODE[:RECIPE]][/VARIANT]", "Whose records to predict from.", "--from"),
    ] = None,
    gpus: Annotated[PositiveInt | None, Option("How many of its GPUs train [all]", limit=GPUS)] = None,
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
    label, execution = split_variant(source, f"--from {source!r}")
    origin, _, mode = label.partition(":")
    require_read(catalog, [instance, origin])
    called = find(catalog, instance)
    reference = parse_reference(None, [called.key])
    options = CompareOptions((called.key,), date.today(), reference, price_as_of, region, purchase)
    require_region(region, catalog, [called.key])
    there = target(called, catalog, gpus)
    requested = Filter(mode=mode or None, execution=execution, batch_size=batch_size, workload=workload)
    kept = results.measured(results.read(results_dir, {origin}), Unread(), requested)
    if not kept:
        remedy = f"Name one that is with --from; `fp8bench compare {origin}` shows what there is"
        raise results.nothing_found(f"of {source}{requested.words} is measured and ok", results_dir, remedy, RUN)
    # Rows of several workloads are not comparable.
    (most, _), *others = Counter(record.what.workload for one in kept for record in one.rounds).most_common()
    if others:
        named = ", ".join(sorted(name for name, _ in others))
        log(f"predicting {most}, the workload of most records; --workload chooses another ({named})")
    found, omitted = sources([one for one in kept if one.latest.what.workload == most], catalog)
    rows, warnings = predictions(found, there, known(), catalog, options)
    show(document(rows, warnings, omitted), form)
    if all(one.row.reason for one in rows):
        raise typer.Exit(ModeUnavailable.exit_code)
