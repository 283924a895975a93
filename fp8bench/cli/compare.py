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
    from collections.abc import Sequence

    from fp8bench.kinds.kind import Kind
    from fp8bench.records.broken import Broken
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
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are."),
) -> None:
    """Which mode on which instance buys most for a dollar."""
    # A command of a moment, over records that hold each other in no circle: collecting garbage only costs.
    gc.disable()
    from fp8bench.config.words import whole
    from fp8bench.kinds.kind import CompareOptions
    from fp8bench.pricing import catalog as catalogs
    from fp8bench.records import results
    from fp8bench.records.named import parse_reference
    from fp8bench.schema.bounds import IMPORTED_BATCH_SIZE
    from fp8bench.schema.errors import MeasurementInvalid, UsageError, require_known
    from fp8bench.schema.option import flag_of

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
    }
    for option, setting in given.items():
        if option not in compared.compare_options and setting not in (None, False):
            flag = flag_of(option)
            raise UsageError(f"{flag} does not apply to records of kind {kind}", f"Omit {flag}")
    wanted = parse_reference(reference, keys)
    today = date.today()
    options = CompareOptions(
        instances=tuple(keys),
        today=today,
        reference=replace(wanted, instance=key_of(wanted.instance)),
        as_of=_date(price_as_of, today),
        region=region,
        purchase=cast("Purchase", purchase),
        workload=workload,
        batch_size=batch_size,
        optimizer=cast("OptimizerName | None", optimizer),
        every=every,
        allow_mismatch=allow_mismatch,
    )
    broken: list[Broken] = []

    def unread(found: "Sequence[Broken]") -> None:
        tell_broken(found)
        broken.extend(found)

    show(compared.compare(options, catalog, results_dir, log, unread), form)
    if broken and strict:
        raise typer.Exit(MeasurementInvalid.exit_code)


def _date(text: str | None, today: date) -> date | None:
    from fp8bench.schema.errors import UsageError

    if text is None or text == "today":
        return today if text else None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--price-as-of {text!r} is not a date", "Give `today`, or a day as 2026-11-09") from error
