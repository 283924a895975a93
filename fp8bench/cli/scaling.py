"""`fp8bench scaling`: a GPU's rate as nodes are added, the cost of a billion units there, and projected nodes."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat

from fp8bench.cli.options import Form, ResultsDir, Unread, argument, option
from fp8bench.cli.output import draw, load_catalog, show
from fp8bench.cli.selection import Scope
from fp8bench.kinds.kind import AllNotes, View, in_commas
from fp8bench.records import results
from fp8bench.records.select import rounds_of
from fp8bench.scaling.document import PICTURE, document
from fp8bench.scaling.points import scaled
from fp8bench.scaling.projected import MOST_NODES, Network, measured_links, projections
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import Limit, Option
from fp8bench.schema.record import ThroughputRecord
from fp8bench.tables.chart import require_drawable


def scaling(
    scope: Scope,
    instances: Annotated[tuple[str, ...], argument("INSTANCE", "Whose records [every one that has any].")] = (),
    project: Annotated[
        tuple[Annotated[int, Field(ge=2)], ...],
        in_commas,
        option("N,N,...", f"Project one node to so many, at most {MOST_NODES}, apart and marked.", "--project"),
    ] = (),
    network_gbps: Annotated[
        PositiveFloat | None,
        Option(
            "Of a node in one direction, for --project [as measured, or the catalogue's]",
            limit=Limit(1_000_000, "no node has a network of a petabit", "GBPS"),
        ),
    ] = None,
    plot: Annotated[Path | None, option("FILE", "Draw it, .png, .svg or .pdf.")] = None,
    prices: Annotated[
        tuple[str, ...], option("INSTANCE=USD", "What if an hour of a node cost this; may be given several times.")
    ] = (),
    wide: Annotated[bool, Option("Every row; a narrow terminal divides the columns over tables")] = False,
    notes: AllNotes = False,
    form: Form = "table",
    results_dir: ResultsDir = Path("results"),
) -> None:
    if plot is not None:
        require_drawable(plot)
    if not project and network_gbps is not None:
        raise UsageError("--network-gbps is about a projection, and none was requested", "Add --project 2,4,8")
    nodes = sorted(set(project))
    if nodes and nodes[-1] > MOST_NODES:
        far = f"a projection to more than {MOST_NODES} nodes was up to 10 points off at 16, and 15 at 32"
        raise UsageError(f"--project {nodes[-1]} is too far: {far}", "Give a smaller number")
    # The workload is chosen among those that records have, also published ones that this program cannot train.
    anything = scope.model_copy(update={"workload": None})
    published = results.read_kind(results_dir, load_catalog(results_dir).instances, ThroughputRecord)
    every = sorted({*results.known_instances(results_dir), *(one.instance for one in published)})
    options, catalog = anything.resolved(instances or every, results_dir, View(price=prices, wide=wide, notes=notes))
    kept = results.read(results_dir, options.instances)
    figures = results.read_kind(results_dir, options.instances, ThroughputRecord)
    unread = Unread()
    unread(figures.broken)
    records = results.sound(kept, unread, lambda left: rounds_of(left, options.every, options.wanted))
    found = scaled(records, figures, scope.workload, options, catalog, results_dir)
    if nodes:
        found = projections(
            found, nodes, Network(measured_links(results_dir, options.instances), catalog, network_gbps)
        )
    made = document(found, options.view)
    show(made, form)
    draw(made, PICTURE, plot)
