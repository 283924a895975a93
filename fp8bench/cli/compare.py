"""`fp8bench compare`: records and prices joined into a price-performance table."""

import gc
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.output import FORMATS, load_catalog, log, require_read, show, tell_broken
from fp8bench.schema.execution import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fp8bench.kinds.kind import Kind
    from fp8bench.records.files import Broken
    from fp8bench.schema.execution import OptimizerName
    from fp8bench.schema.instance import Purchase

KINDS = tuple(entry.name for entry in registry.KINDS)
PURCHASES = ("on_demand", "spot", "capacity_block")


def compare(
    instances: list[str] = typer.Argument(
        ..., metavar="INSTANCE...", autocompletion=names.instances, help="Names in the catalogue or in the results."
    ),
    reference: str = typer.Option(
        None,
        "--reference",
        metavar="INSTANCE:MODE[:RECIPE][/VARIANT]",
        autocompletion=names.references,
        help="Row to compare the others with, in one of its variants (as /graphed) or its best [the first's "
        "baseline-bf16].",
    ),
    price_as_of: str = typer.Option(
        None,
        "--price-as-of",
        metavar="DATE|today",
        help="Price all rows on this day [today; of published figures alone, the newest's day].",
    ),
    region: str = typer.Option(None, "--region", help="Only prices of this region."),
    bought: str = typer.Option(
        None, "--purchase", metavar="|".join(PURCHASES), help=f"How it is bought [{PURCHASES[0]}]."
    ),
    workload: str = typer.Option(
        None, "--workload", autocompletion=names.workloads, help="Only records of this workload."
    ),
    batch_words: str = typer.Option(
        None, "--batch-size", metavar="N", help="Only records of this batch size a worker."
    ),
    optimizer: str = typer.Option(
        None,
        "--optimizer",
        metavar="|".join(OPTIMIZERS),
        autocompletion=names.one_of(*OPTIMIZERS),
        help="Only records of this optimizer.",
    ),
    job_words: str = typer.Option(
        None, "--job", metavar="UNITS", help="Show hours and USD to train on so many images or tokens, as 90M."
    ),
    prices: list[str] = typer.Option(
        None, "--price", metavar="INSTANCE=USD", help="What if an hour cost this; may be given several times."
    ),
    wide: bool = typer.Option(False, "--wide", help="Every column; a narrow terminal divides them over tables."),
    column_words: str = typer.Option(
        None, "--columns", metavar="A,B,...", help="These columns, by name (mode, step, value, gain, memory, ...)."
    ),
    sort: str = typer.Option(
        None,
        "--sort",
        metavar="[-]COLUMN",
        autocompletion=names.columns,
        help="Best of a column first; with a dash last [what a USD buys].",
    ),
    filters: list[str] = typer.Option(
        None, "--filter", metavar="COLUMN=VALUE", help="Only rows like this (=, !=, <, <=, >, >=), as mode=te-fp8."
    ),
    group_by: str = typer.Option(
        None,
        "--group-by",
        metavar="COLUMN",
        autocompletion=names.columns,
        help="A table for each value; with batch: compared at the same batch.",
    ),
    best_batch: bool = typer.Option(False, "--best-batch", help="Each mode at its best batch size alone."),
    kind: str = typer.Option(
        "run", "--kind", metavar="|".join(KINDS), help="Of what: runs, or what these commands kept."
    ),
    every: bool = typer.Option(False, "--all", help="Every record, not only the latest of each variant."),
    allow_mismatch: bool = typer.Option(
        False, "--allow-mismatch", help="Show what is not comparable, and compare unlike machines and software, marked."
    ),
    strict: bool = typer.Option(False, "--strict", help="Exit code 4 where a record is broken."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=names.one_of(*FORMATS), help="How to print."
    ),
    results_dir: list[Path] = typer.Option(
        [Path("results")], "--results-dir", metavar="DIR", help="Where records are; may be given several times."
    ),
) -> None:
    """Which mode on which instance buys most for a dollar."""
    # A command of a moment, over records that hold each other in no circle: collecting garbage only costs.
    gc.disable()
    from fp8bench.config.words import whole
    from fp8bench.kinds.kind import CompareOptions
    from fp8bench.kinds.view import View, parse_columns, parse_conditions, parse_job
    from fp8bench.pricing import catalog as catalogs
    from fp8bench.records import results
    from fp8bench.records.named import parse_reference
    from fp8bench.records.select import Filter
    from fp8bench.schema.errors import MeasurementInvalid, UsageError, require_known
    from fp8bench.schema.option import IMPORTED_BATCH_SIZE, flag_of

    purchase = PURCHASES[0] if bought is None else bought
    batch_size = None if batch_words is None else whole("--batch-size", batch_words, 1, IMPORTED_BATCH_SIZE)
    for value, known, flag in (
        (form, FORMATS, "--format"),
        (purchase, PURCHASES, "--purchase"),
        (kind, KINDS, "--kind"),
        *([] if optimizer is None else [(optimizer, OPTIMIZERS, "--optimizer")]),
    ):
        require_known(flag, value, known, "fp8bench compare --help")
    if workload is not None:
        registry.find_workload(workload)
    catalog = load_catalog(results_dir)
    measured = results.known_instances(results_dir)

    def key_of(name: str) -> str:
        if name in measured:
            return name
        catalogs.require_read(catalog, [name])
        try:
            return catalogs.find(catalog, name, measured).key
        except UsageError as error:
            raise UsageError(f"{error.what}, and {results.what_lies_in(results_dir)}", error.remedy) from error

    wanted = Filter(workload=workload, batch_size=batch_size, optimizer=cast("OptimizerName | None", optimizer))
    keys = list(dict.fromkeys(map(key_of, instances)))
    require_read(catalog, keys)
    compared: Kind = registry.load(registry.find_kind(kind))
    given: dict[str, object] = {
        "reference": reference,
        "price_as_of": price_as_of,
        "region": region,
        "purchase": bought,
        "allow_mismatch": allow_mismatch,
        "optimizer": optimizer,
        "workload": workload,
        "batch_size": batch_size,
        "price": prices,
        "job": job_words,
        "columns": column_words,
        "wide": wide,
        "sort": sort,
        "filter": filters,
        "group_by": group_by,
        "best_batch": best_batch,
    }
    for option, setting in given.items():
        if option not in compared.compare_options and setting not in (None, False, []):
            flag = flag_of(option)
            raise UsageError(f"{flag} does not apply to records of kind {kind}", f"Omit {flag}")
    view = View(
        columns=parse_columns(column_words),
        wide=wide,
        sort=sort,
        filter=parse_conditions(filters or ()),
        group_by=group_by,
        best_batch=best_batch,
    )
    named = parse_reference(reference, keys)
    today = date.today()
    options = CompareOptions(
        instances=tuple(keys),
        today=today,
        reference=replace(named, instance=key_of(named.instance)),
        as_of=day_of(price_as_of, today),
        region=region,
        purchase=cast("Purchase", purchase),
        wanted=wanted,
        every=every,
        allow_mismatch=allow_mismatch,
        price=assumed_prices(prices or (), key_of, keys),
        job=None if job_words is None else parse_job(job_words),
        view=view,
    )
    broken: list[Broken] = []

    def unread(found: "Sequence[Broken]") -> None:
        tell_broken(found)
        broken.extend(found)

    show(compared.compare(options, catalog, results_dir, log, unread), form)
    if broken and strict:
        raise typer.Exit(MeasurementInvalid.exit_code)


def assumed_prices(words: "Iterable[str]", key_of: "Callable[[str], str]", shown: "Sequence[str]") -> dict[str, float]:
    """USD an hour by instance. Raises UsageError for one that is not shown or is given twice, and for no price."""
    from fp8bench.kinds.view import parse_price
    from fp8bench.schema.errors import UsageError

    found: dict[str, float] = {}
    for word in words:
        name, usd = parse_price(word)
        key = key_of(name)
        if key not in shown:
            raise UsageError(
                f"--price {name}: that instance is not compared", f"Add it, or give one of: {', '.join(shown)}"
            )
        if found.setdefault(key, usd) != usd:
            raise UsageError(f"--price gives {name} two prices, {found[key]:g} and {usd:g}", "Give one")
    return found


def day_of(text: str | None, today: date) -> date | None:
    """What --price-as-of gives; None where it was not given. Raises UsageError for what is no date."""
    from fp8bench.schema.errors import UsageError

    if text is None or text == "today":
        return today if text else None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--price-as-of {text!r} is not a date", "Give `today`, or a day as 2026-11-09") from error
