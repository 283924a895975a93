"""`fp8bench scaling`: a GPU's rate as nodes are added, the cost of a billion units there, and projected nodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fp8bench.cli import names
from fp8bench.cli.options import Form, option, switch
from fp8bench.cli.output import draw, load_catalog, show, tell_broken
from fp8bench.cli.selection import Scope
from fp8bench.config.words import above_zero, whole
from fp8bench.records import results
from fp8bench.report.paper import require_drawable
from fp8bench.scaling import check as checking
from fp8bench.scaling.document import PICTURE, document
from fp8bench.scaling.gather import Question, Scaled, gather
from fp8bench.scaling.projected import Projections, projections, with_collectives
from fp8bench.scaling.published import instances_published, records_published
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.option import GPUS, Limit

REFERENCE = "baseline-bf16"


def scaling(
    instances: list[str] = typer.Argument(
        None, metavar="[INSTANCE]...", autocompletion=names.instances, help="Whose records [every one that has any]."
    ),
    scope: Scope = Scope(),
    reference: Annotated[str, option("MODE[:RECIPE]", "Mode to compare with.", names.modes)] = REFERENCE,
    project: Annotated[
        str | None, option("N,N,...", "Project one node to these numbers of nodes, apart and marked.")
    ] = None,
    collectives: Annotated[
        str | None, option("RECORD", "Links within a node: a file or a run's id [the instance's own].")
    ] = None,
    network_gbps: Annotated[
        str | None, option("GBPS", "Of a node in one direction, for --project [the catalogue's].")
    ] = None,
    check: Annotated[bool, switch("--check", "Show how far projections are off published figures, and end.")] = False,
    plot: Annotated[Path | None, option("FILE", "Draw it, .png, .svg or .pdf.")] = None,
    prices: Annotated[
        list[str] | None,
        option("INSTANCE=USD", "What if an hour of a node cost this; may be given several times.", None, "--price"),
    ] = None,
    form: Form = "table",
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are."),
) -> None:
    if plot is not None:
        require_drawable(plot)
    if check:
        _refuse_beside_check(instances, scope.workload, project, plot)
        show(checking.document(_cases(load_catalog(results_dir))), form)
        return
    if project is None and (collectives is not None or network_gbps is not None):
        flag = "--network-gbps" if collectives is None else "--collectives"
        raise UsageError(f"{flag} is about a projection, and none was requested", "Add, for example, --project 2,4,8")
    nodes = () if project is None else _nodes(project)
    gbps = None if network_gbps is None else _gbps(network_gbps)
    # The workload is chosen among those with several sizes, including the published ones.
    options, catalog = replace(scope, workload=None).resolved(
        instances or _all_instances(results_dir), results_dir, prices or ()
    )
    question = Question(scope.workload, reference, named=bool(instances), one_size_will_do=bool(nodes))
    found = gather(question, options, catalog, results_dir, tell_broken)
    ahead = _projected(found, nodes, collectives, gbps, catalog, results_dir) if nodes else None
    shown = document(found, ahead)
    show(shown, form)
    draw(shown, PICTURE, plot)


def _refuse_beside_check(
    instances: Sequence[str], workload: str | None, project: str | None, plot: Path | None
) -> None:
    given = {"INSTANCE": instances or None, "--workload": workload, "--project": project, "--plot": plot}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} does not apply to --check", f"Omit {name}")


def _all_instances(results_dir: Path) -> list[str]:
    """Return the instances of the records here, and of the published figures that come with the program."""
    return sorted({*results.known_instances(results_dir), *instances_published()})


def _cases(catalog: Catalog) -> tuple[checking.Case, ...]:
    """Return cases from the figures that come with the program only, so that the answer is the same everywhere."""
    return checking.cases(records_published(), catalog)


def _nodes(text: str) -> tuple[int, ...]:
    """Parse numbers of nodes. Raises UsageError for anything other than integers of at least 2."""
    return tuple(sorted({whole("--project", word, 2, GPUS) for word in text.split(",")}))


def _gbps(text: str) -> float:
    return above_zero("--network-gbps", text, 400, Limit(1_000_000, "no node has a network of a petabit"))


def _projected(
    found: Scaled,
    nodes: tuple[int, ...],
    collectives: str | None,
    gbps: float | None,
    catalog: Catalog,
    results_dir: Path,
) -> Projections:
    keys = {point.instance for point in found.points}
    wanted = with_collectives(nodes, gbps, collectives, keys, results_dir, tell_broken)
    made = projections(found.found, wanted, catalog)
    warned = checking.caution(_cases(catalog))
    return replace(made, warnings=(*made.warnings, *([warned.text] if warned else [])))
