"""`fp8bench scaling`: what a GPU does as nodes are added, what a billion units cost there, and more nodes projected."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli import names, selection
from fp8bench.cli.output import FORMATS, draw, load_catalog, show, tell_broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fp8bench.scaling.check import Case
    from fp8bench.scaling.gather import Scaled
    from fp8bench.scaling.projected import Projections
    from fp8bench.schema.instance import Catalog

REFERENCE = "baseline-bf16"


def scaling(
    instances: list[str] = typer.Argument(
        None, metavar="[INSTANCE]...", autocompletion=names.instances, help="Whose records [every one that has any]."
    ),
    workload: str = typer.Option(
        None, "--workload", metavar="NAME", autocompletion=names.workloads, help="Of what [the one with several sizes]."
    ),
    reference: str = typer.Option(
        REFERENCE, "--reference", metavar="MODE[:RECIPE]", autocompletion=names.modes, help="Faster than which mode."
    ),
    batch_size: str = selection.BATCH_SIZE,
    optimizer: str = selection.OPTIMIZER,
    project: str = typer.Option(
        None, "--project", metavar="N,N,...", help="Project one node to these numbers of nodes, apart and marked."
    ),
    collectives: str = typer.Option(
        None,
        "--collectives",
        metavar="RECORD",
        help="Links within a node: a file or a run's id [the instance's own].",
    ),
    network_gbps: str = typer.Option(
        None, "--network-gbps", metavar="GBPS", help="Of a node in one direction, for --project [the catalogue's]."
    ),
    check: bool = typer.Option(False, "--check", help="Show how far projections are off published figures, and end."),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw it, .png, .svg or .pdf."),
    price_as_of: str = selection.PRICE_AS_OF,
    region: str = selection.REGION,
    purchase: str = selection.PURCHASE,
    prices: list[str] = typer.Option(
        None, "--price", metavar="INSTANCE=USD", help="What if an hour of a node cost this; may be given several times."
    ),
    every: bool = selection.EVERY,
    allow_mismatch: bool = selection.ALLOW_MISMATCH,
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=names.one_of(*FORMATS), help="How to print."
    ),
    results_dir: Path = selection.RESULTS_DIR,
) -> None:
    """Throughput a GPU and its cost over numbers of nodes, with what fp8 gives at each, and projected to more."""
    # A command of a moment, over records that hold each other in no circle: collecting garbage only costs.
    gc.disable()
    from fp8bench.report.paper import require_drawable
    from fp8bench.scaling.document import PICTURE, document
    from fp8bench.scaling.gather import Asked, gather
    from fp8bench.schema.errors import UsageError, require_known

    require_known("--format", form, FORMATS, "fp8bench scaling --help")
    if plot is not None:
        require_drawable(plot)
    if check:
        from fp8bench.scaling import check as checking

        _refuse_beside_check(instances, workload, project, plot)
        show(checking.document(_cases(load_catalog(results_dir))), form)
        return
    if project is None and (collectives is not None or network_gbps is not None):
        flag = "--network-gbps" if collectives is None else "--collectives"
        raise UsageError(f"{flag} is about a projection, and none was asked for", "Add, for example, --project 2,4,8")
    nodes = () if project is None else _nodes(project)
    gbps = None if network_gbps is None else _gbps(network_gbps)
    options, catalog = selection.selected(
        "scaling", instances or _all_instances(results_dir), results_dir, reference=None, price_as_of=price_as_of,
        region=region, purchase=purchase, workload=None, batch_size=batch_size, optimizer=optimizer, every=every,
        allow_mismatch=allow_mismatch, prices=prices or (),
    )  # fmt: skip
    asked = Asked(workload, reference, named=bool(instances), one_size_will_do=bool(nodes))
    found = gather(asked, options, catalog, results_dir, tell_broken)
    ahead = _projected(found, nodes, collectives, gbps, catalog, results_dir) if nodes else None
    shown = document(found, ahead)
    show(shown, form)
    draw(shown, PICTURE, plot)


def _refuse_beside_check(
    instances: "Sequence[str]", workload: str | None, project: str | None, plot: Path | None
) -> None:
    from fp8bench.schema.errors import UsageError

    given = {"INSTANCE": instances or None, "--workload": workload, "--project": project, "--plot": plot}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} does not apply to --check", f"Omit {name}")


def _all_instances(results_dir: Path) -> list[str]:
    """Those of the records here, and of the published figures that travel with the program."""
    from fp8bench.records import results
    from fp8bench.scaling.published import instances_published

    return sorted({*results.known_instances(results_dir), *instances_published()})


def _cases(catalog: "Catalog") -> "tuple[Case, ...]":
    """Of the figures that travel with the program alone, so that the answer is the same everywhere."""
    from fp8bench.scaling.check import cases
    from fp8bench.scaling.published import records_published

    return cases(records_published(), catalog)


def _nodes(text: str) -> tuple[int, ...]:
    """Raises UsageError for what are no whole numbers of at least 2."""
    from fp8bench.config.words import whole
    from fp8bench.schema.option import GPUS

    return tuple(sorted({whole("--project", word, 2, GPUS) for word in text.split(",")}))


def _gbps(text: str) -> float:
    from fp8bench.config.words import above_zero
    from fp8bench.schema.option import Bound

    return above_zero("--network-gbps", text, 400, Bound(1_000_000, "no node has a network of a petabit"))


def _projected(
    found: "Scaled",
    nodes: tuple[int, ...],
    collectives: str | None,
    gbps: float | None,
    catalog: "Catalog",
    results_dir: Path,
) -> "Projections":
    from dataclasses import replace

    from fp8bench.scaling.check import caution
    from fp8bench.scaling.projected import projections, with_collectives

    keys = {point.instance for point in found.points}
    wanted = with_collectives(nodes, gbps, collectives, keys, results_dir, tell_broken)
    made = projections(found.found, wanted, catalog)
    warned = caution(_cases(catalog))
    return replace(made, warnings=(*made.warnings, *([warned.text] if warned else [])))
