"""`fp8bench report`: what `compare` shows, with everything that it rests on, as one page of HTML; or one plot of it."""

from datetime import date
from pathlib import Path
from typing import Annotated

from fp8bench.cli.options import ResultsDir, Unread, argument, option
from fp8bench.cli.output import log, warn
from fp8bench.cli.selection import Selection
from fp8bench.kinds.kind import AS_IT_IS, JOB_UNITS, Count
from fp8bench.kinds.run import gather
from fp8bench.kinds.run.charts import PLOTS, charts, shown_rows
from fp8bench.kinds.run.page import page
from fp8bench.records import results
from fp8bench.schema.errors import UsageError, require_known, writing
from fp8bench.schema.files import write_atomically
from fp8bench.schema.option import Option
from fp8bench.tables.page import render

FORMATS = ("html", "png", "svg", "pdf")
PAGE = "html"
REPLACE = "Name another file, or replace it with --force"


def report(
    unread: Unread,
    selection: Selection,
    instances: Annotated[tuple[str, ...], argument("INSTANCE", "Names in the catalogue or the results [all].")] = (),
    output: Annotated[
        Path | None, option("FILE", "Where it is written [report.html, or the plot's name].", "-o", "--output")
    ] = None,
    force: Annotated[bool, Option("Replace the file if it exists")] = False,
    plot: Annotated[str | None, option("|".join(PLOTS), "Draw only this, as .png, .svg or .pdf.")] = None,
    job: Annotated[
        Count | None, Option("Cost of so many images or tokens [1M, of tokens 1e9]", metavar="UNITS", limit=JOB_UNITS)
    ] = None,
    results_dir: ResultsDir = Path("results"),
) -> None:
    if plot is not None:
        require_known("--plot", plot, PLOTS, "fp8bench report --help")
    path, kind = _place(output, plot)
    if path.exists() and not force:
        raise UsageError(f"{path} exists", REPLACE)
    keys = instances or sorted(results.known_instances(results_dir))
    if not keys:
        raise results.nothing_found("to report", results_dir, "Measure with `fp8bench run`, or name an instance")
    view = AS_IT_IS.model_copy(update={"job": job})
    options, catalog = selection.resolved(keys, results_dir, view, named=bool(instances))
    kept = results.read(results_dir, options.instances)
    found = gather(kept, options, catalog, results_dir, unread)
    if found.hint:
        log(found.hint)
    for text in found.warnings:
        warn(text)
    if all(row.status != "ok" for row in found.rows):
        warn("no row is a valid measurement; the page says why")
    if kind == PAGE:
        bought = options.purchase.replace("_", " ")
        text = render(page(found, date.today(), bought))
        with writing(path, "Name another file with -o"):
            try:
                write_atomically(path, text, replace=force)
            except FileExistsError as error:
                # It has appeared there meanwhile.
                raise UsageError(f"{path} exists", REPLACE) from error
    else:
        chart = charts(shown_rows(found.rows)).get(str(plot))
        if chart is None:
            raise UsageError(f"no row has anything to draw as {plot}", "See the rows with `fp8bench compare`")
        chart.write(path)
    log(f"written as {path}")


def _place(output: Path | None, plot: str | None) -> tuple[Path, str]:
    """Return the path and the format, by how its name ends. Raises UsageError for what does not fit together."""
    usual = PAGE if plot is None else "png"
    path = output or Path(f"{plot or 'report'}.{usual}")
    if not path.suffix and not path.exists():
        path = path.with_name(f"{path.name}.{usual}")
    kind, folder = path.suffix.lower().removeprefix("."), path.parent
    for refused, what, remedy in (
        (path.is_dir(), f"{path} is a folder", "Name a file in it"),
        (kind not in FORMATS, f"{path} ends in no known format", f"End it in .{', .'.join(FORMATS)}"),
        (kind == PAGE and plot is not None, "a plot is no page", "Omit --plot for the page"),
        (kind != PAGE and plot is None, f"a page cannot be {kind}", f"Choose one with --plot: {', '.join(PLOTS)}"),
        (not folder.is_dir(), f"there is no folder {folder}", f"Make it with `mkdir -p {folder}`, or name another"),
    ):
        if refused:
            raise UsageError(what, remedy)
    return path, kind
