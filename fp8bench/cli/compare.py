"""`fp8bench compare`: records and prices joined into a price-performance table."""

import gc
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from fp8bench.cli import names
from fp8bench.cli.catalog import load_catalog, require_read
from fp8bench.cli.kept import tell_broken
from fp8bench.cli.output import FORMATS, show
from fp8bench.cli.progress import log
from fp8bench.schema.execution import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fp8bench.records.files import Broken
    from fp8bench.records.layout import SomeRecord
    from fp8bench.records.select import Filter
    from fp8bench.report.options import CompareOptions
    from fp8bench.report.run.row import Comparison
    from fp8bench.schema.execution import OptimizerName
    from fp8bench.schema.instance import Catalog, Purchase
    from fp8bench.schema.record import Record

KINDS = ("run", "gemm", "numerics")
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
        help="Row to hold the others against, in one of its variants (as /graphed) or its best [the first's "
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
    from fp8bench.pricing import catalog as catalogs
    from fp8bench.records import results
    from fp8bench.records.named import parse_reference
    from fp8bench.records.select import Filter
    from fp8bench.report.options import CompareOptions
    from fp8bench.schema.errors import UsageError, require_known
    from fp8bench.schema.option import IMPORTED_BATCH_SIZE

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
        from fp8bench.registry import find_workload

        find_workload(workload)
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
    if kind != "run":
        of_runs = {
            "--reference": reference,
            "--price-as-of": price_as_of,
            "--region": region,
            "--purchase": bought,
            "--allow-mismatch": allow_mismatch,
            "--optimizer": optimizer,
        }
        if kind == "gemm":
            _refuse_beside_kind(kind, of_runs)
            broken = _print_products(keys, every, catalog, form, results_dir, wanted)
        else:
            _refuse_beside_kind(kind, {**of_runs, "--workload": workload, "--batch-size": batch_size})
            broken = _print_errors(keys, every, form, results_dir)
        _fail_if_strict(broken, strict)
        return
    named = parse_reference(reference, keys)
    today = date.today()
    options = CompareOptions(
        instances=tuple(keys),
        today=today,
        reference=replace(named, instance=key_of(named.instance)),
        as_of=_date(price_as_of, today),
        region=region,
        purchase=cast("Purchase", purchase),
        wanted=wanted,
        every=every,
        allow_mismatch=allow_mismatch,
    )
    _fail_if_strict(_print_runs(options, catalog, form, results_dir), strict)


def _fail_if_strict(broken: "Sequence[Broken]", strict: bool) -> None:
    from fp8bench.schema.errors import MeasurementInvalid

    if broken and strict:
        raise typer.Exit(MeasurementInvalid.exit_code)


def _refuse_beside_kind(kind: str, given: dict[str, object]) -> None:
    """given: options that do not apply to this kind, by their flags. Raises UsageError for any that was set."""
    from fp8bench.schema.errors import UsageError

    for flag, value in given.items():
        if value not in (None, False):
            raise UsageError(f"{flag} does not apply to records of kind {kind}", f"Omit {flag}")


def _print_runs(options: "CompareOptions", catalog: "Catalog", form: str, results_dir: Path) -> "Sequence[Broken]":
    """Runs, with prices; returns the files that could not be read."""
    from fp8bench.records import results
    from fp8bench.report.run.compare import compare as compare_records

    unread: list[Broken] = []

    def told(broken: "Sequence[Broken]") -> None:
        tell_broken(broken)
        unread.extend(broken)

    def compared(records: "list[Record]", whole: "Callable[[Record], Record]") -> "Comparison":
        for key in options.instances:
            if not any(record.instance == key for record in records):
                remedy = f"Run `fp8bench run --instance {key}` there, or put a figure in with `fp8bench import`"
                raise results.nothing_found(f"for instance {key!r}", results_dir, remedy)
        return compare_records(records, catalog, options, whole)

    print_comparison(results.read_on_demand(results.read(results_dir, options.instances), told, compared), form)
    return unread


def _print_products(
    keys: "list[str]",
    every: bool,
    catalog: "Catalog",
    form: str,
    results_dir: Path,
    wanted: "Filter",
) -> "Sequence[Broken]":
    """Matrix products, as `fp8bench gemm` prints them; the same work of several side by side."""
    from fp8bench.records import results
    from fp8bench.report.gemm.document import document
    from fp8bench.schema.gemm import GemmRecord

    found = results.read_kind(results_dir, keys, GemmRecord)
    tell_broken(found.broken)
    chosen = _chosen("gemm", wanted.of(found), keys, every, results_dir, wanted.words)
    show(document(chosen, catalog), form)
    return found.broken


def _print_errors(keys: "list[str]", every: bool, form: str, results_dir: Path) -> "Sequence[Broken]":
    """What modes add to a layer, as `fp8bench numerics` prints it; the same work of several side by side."""
    from fp8bench.records import results
    from fp8bench.report.numerics.document import document
    from fp8bench.schema.numerics import NumericsRecord

    found = results.read_kind(results_dir, keys, NumericsRecord)
    tell_broken(found.broken)
    show(document(_chosen("numerics", list(found), keys, every, results_dir)), form)
    return found.broken


def _chosen(
    kind: str, kept: "list[SomeRecord]", keys: "list[str]", every: bool, results_dir: Path, of: str = ""
) -> "list[SomeRecord]":
    """The latest of each work, or every one, in the order of the command line. of: see `Filter.words`.

    An instance that has none is named on stderr. Raises UsageError where none has any.
    """
    from fp8bench.records.results import nothing_found
    from fp8bench.records.select import in_order, latest_alike

    if not kept:
        raise nothing_found(
            f"of `fp8bench {kind}`{of} for {', '.join(keys)}",
            results_dir,
            f"Run `fp8bench {kind} --instance {keys[0]}` there",
        )
    for missing in [key for key in keys if key not in {record.instance for record in kept}]:
        log(f"warning: no record of `fp8bench {kind}`{of} for {missing}: it is left out")
    return in_order(kept if every else latest_alike(kept), keys)


def print_comparison(comparison: "Comparison", form: str) -> None:
    """Rows with their warnings to stdout; the warnings, one line each, to stderr too."""
    from fp8bench.report.run.document import document

    show(document(comparison), form)


def _date(text: str | None, today: date) -> date | None:
    from fp8bench.schema.errors import UsageError

    if text is None or text == "today":
        return today if text else None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--price-as-of {text!r} is not a date", "Say `today`, or a day as 2026-11-09") from error
