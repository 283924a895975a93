"""`fp8bench compare`: records and prices joined into a price-performance table."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench import registry
from fp8bench.cli import names, selection
from fp8bench.cli.output import FORMATS, log, show, tell_broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fp8bench.kinds.kind import Kind
    from fp8bench.records.files import Broken

KINDS = tuple(entry.name for entry in registry.KINDS)


def compare(
    instances: list[str] = typer.Argument(
        ..., metavar="INSTANCE...", autocompletion=names.instances, help="Names in the catalogue or in the results."
    ),
    reference: str = selection.REFERENCE,
    price_as_of: str = selection.PRICE_AS_OF,
    region: str = selection.REGION,
    purchase: str = selection.PURCHASE,
    workload: str = selection.WORKLOAD,
    batch_size: str = selection.BATCH_SIZE,
    optimizer: str = selection.OPTIMIZER,
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
    every: bool = selection.EVERY,
    allow_mismatch: bool = selection.ALLOW_MISMATCH,
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
    from fp8bench.kinds.view import View, parse_columns, parse_conditions, parse_job
    from fp8bench.schema.errors import MeasurementInvalid, UsageError, require_known
    from fp8bench.schema.option import flag_of

    for value, known, flag in ((form, FORMATS, "--format"), (kind, KINDS, "--kind")):
        require_known(flag, value, known, "fp8bench compare --help")
    given: dict[str, object] = {
        "reference": reference,
        "price_as_of": price_as_of,
        "region": region,
        "purchase": purchase,
        "workload": workload,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "allow_mismatch": allow_mismatch,
        "price": prices,
        "job": job_words,
        "columns": column_words,
        "wide": wide,
        "sort": sort,
        "filter": filters,
        "group_by": group_by,
        "best_batch": best_batch,
    }
    compared: Kind = registry.load(registry.find_kind(kind))
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
    options, catalog = selection.selected(
        "compare",
        instances,
        results_dir,
        reference=reference,
        price_as_of=price_as_of,
        region=region,
        purchase=purchase,
        workload=workload,
        batch_size=batch_size,
        optimizer=optimizer,
        every=every,
        allow_mismatch=allow_mismatch,
        prices=prices or (),
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
