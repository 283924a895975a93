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
    kind: str = typer.Option(
        "run", "--kind", metavar="|".join(KINDS), help="Of what: runs, or what these commands kept."
    ),
    every: bool = selection.EVERY,
    allow_mismatch: bool = selection.ALLOW_MISMATCH,
    strict: bool = typer.Option(False, "--strict", help="Exit code 4 where a record is broken."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=names.one_of(*FORMATS), help="How to print."
    ),
    results_dir: Path = selection.RESULTS_DIR,
) -> None:
    """Which mode on which instance buys most for a dollar."""
    # A command of a moment, over records that hold each other in no circle: collecting garbage only costs.
    gc.disable()
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
    }
    compared: Kind = registry.load(registry.find_kind(kind))
    for option, setting in given.items():
        if option not in compared.compare_options and setting not in (None, False):
            flag = flag_of(option)
            raise UsageError(f"{flag} does not apply to records of kind {kind}", f"Omit {flag}")
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
    )
    broken: list[Broken] = []

    def unread(found: "Sequence[Broken]") -> None:
        tell_broken(found)
        broken.extend(found)

    show(compared.compare(options, catalog, results_dir, log, unread), form)
    if broken and strict:
        raise typer.Exit(MeasurementInvalid.exit_code)
