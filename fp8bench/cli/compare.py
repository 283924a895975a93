"""`fp8bench compare`: joins records and prices into a price-performance table."""

from pathlib import Path
from typing import Annotated, Literal

from fp8bench import registry
from fp8bench.cli.options import Strict, argument, option
from fp8bench.cli.output import Unread, log, show
from fp8bench.cli.selection import Selection
from fp8bench.config.options import Folder
from fp8bench.kinds.kind import Kind
from fp8bench.kinds.view import View, parse_job
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import flag_of


class Shown(View):
    """Options for the rows and columns of a table, and for its purpose. All are optional."""

    job: Annotated[str | None, option("UNITS", "Show hours and USD to train on so many images or tokens, as 90M.")] = (
        None
    )
    price: Annotated[
        tuple[str, ...],
        option("INSTANCE=USD", "What if an hour cost this; may be given several times.", None, "--price"),
    ] = ()


def compare(
    instances: Annotated[
        tuple[str, ...], argument("INSTANCE...", "Names in the catalogue or in the results.", "instances")
    ],
    selection: Selection,
    shown: Shown,
    kind: Annotated[
        Literal["run", "gemm", "numerics", "converge", "collectives"],
        option(None, "Kind of record: runs, or what these commands kept."),
    ] = "run",
    strict: Strict = False,
    form: Annotated[
        Literal["table", "markdown", "csv", "json", "answer"],
        option(None, "How to print; answer: JSON of the answer alone.", None, "--format"),
    ] = "table",
    results_dir: Annotated[
        tuple[Folder, ...],
        option("DIR", "Where records are; may be given several times [results].", None, "--results-dir"),
    ] = (Path("results"),),
) -> None:
    compared: Kind = registry.load(registry.find_kind(kind))
    for name, setting in {**vars(selection), **vars(shown)}.items():
        if name not in (*compared.compare_options, "every") and setting not in (None, False, ()):
            flag = flag_of(name)
            raise UsageError(f"{flag} does not apply to records of kind {kind}", f"Omit {flag}")
    if form == "answer" and kind != "run":
        raise UsageError(f"--format answer is of runs, and not of records of kind {kind}", "Use --format json")
    job = None if shown.job is None else parse_job(shown.job)
    options, catalog = selection.resolved(
        instances, results_dir, shown.price, job, shown, reference=selection.reference
    )
    unread = Unread()
    show(compared.compare(options, catalog, results_dir, log, unread), form)
    unread.end(strict)
