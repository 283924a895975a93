"""`fp8bench compare`: joins records and prices into a price-performance table."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from pydantic import ValidationError

from fp8bench import __version__, registry
from fp8bench.cli.options import ResultsDirs, Unread, argument, option
from fp8bench.cli.output import log, show
from fp8bench.cli.selection import Selection
from fp8bench.kinds.kind import Kind, View
from fp8bench.records.bundle import RESULTS, unpack
from fp8bench.records.results import known_instances
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import flag_of


def compare(
    unread: Unread,
    selection: Selection,
    view: View,
    instances: Annotated[tuple[str, ...], argument("INSTANCE", "Names in the catalogue or in the results.")] = (),
    kind: Annotated[Literal[*registry.KINDS], option(None, "Which command's records.")] = "run",  # type: ignore[valid-type]
    form: Annotated[
        Literal["table", "markdown", "latex", "csv", "json", "answer"],
        option(None, "How to print; answer: JSON of the answer alone.", "--format"),
    ] = "table",
    results_dir: ResultsDirs = (Path("results"),),
    bundle: Annotated[Path | None, option("FILE", "The table that `fp8bench results bundle` kept.")] = None,
) -> None:
    with ExitStack() as stack:
        kept = None
        if bundle is not None:
            if instances or kind != "run" or selection != Selection() or results_dir != (Path("results"),):
                what = "--bundle has its own instances and records, and options that choose records and prices"
                raise UsageError(what, "Give only options for columns, rows and the format")
            folder = Path(stack.enter_context(TemporaryDirectory()))
            made, catalog = unpack(bundle, folder)
            view = view.model_copy(update={"price": view.price or made.prices})
            try:
                selection = Selection(**made.selection)
            except ValidationError as error:
                what = f"{bundle} was made by fp8bench {made.fp8bench}, with options that {__version__} lacks"
                raise UsageError(what, "Read it with that fp8bench") from error
            instances, results_dir, kept = made.instances, (folder / RESULTS,), (catalog, made.today)
        elif not instances:
            known = ", ".join(sorted(known_instances(results_dir))) or "`fp8bench list instances`"
            raise UsageError("no instance is named", f"Name one of {known}, or a file with --bundle")
        compared: Kind = registry.kind(kind)
        apply = compared.compare_options
        for name, setting in {**vars(selection), **vars(view)}.items():
            if apply is not None and name not in (*apply, "every") and setting not in (None, False, ()):
                flag = flag_of(name)
                raise UsageError(f"{flag} does not apply to records of kind {kind}", f"Omit {flag}")
        if form == "answer" and kind != "run":
            raise UsageError(f"--format answer is of runs, and not of records of kind {kind}", "Use --format json")
        if view.job is not None and view.budget is not None:
            raise UsageError("--job and --budget are both given", "Give the units to train, or the USD to spend")
        if view.within is not None and view.budget is None:
            raise UsageError("--within is the time of a budget, and none is given", "Give --budget too")
        options, catalog = selection.resolved(instances, results_dir, view, kept=kept)
        show(compared.compare(options, catalog, results_dir, log, unread), form)
