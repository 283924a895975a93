"""`fp8bench gemm`: matrix products by shape, in bf16 and fp8. From which shape on does fp8 pay, and how much can it
give a whole step at most?
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli import names
from fp8bench.cli.options import of_run
from fp8bench.cli.output import FORMATS, draw, show
from fp8bench.cli.progress import log

if TYPE_CHECKING:
    from fp8bench.schema.gemm import GemmRecord
    from fp8bench.schema.instance import Catalog


def gemm(
    workload: str = typer.Option(
        None,
        "--workload",
        autocompletion=names.workloads,
        help="Products of its linear layers, forward and backward [vit-huge; on a CPU vit-micro].",
    ),
    batch_size: str = of_run("Samples a step"),
    shapes: list[str] = typer.Option(
        None, "--shape", metavar="M,N,K", help="Rows, output features, inner dimension. Repeatable."
    ),
    sweep: bool = typer.Option(False, "--sweep", help="Square products, from small to large."),
    precisions: list[str] = typer.Option(
        None,
        "--precision",
        metavar="NAME",
        help="bf16, fp8-tensorwise, fp8-rowwise, or either with -fast for fast accumulation. Repeatable [all].",
    ),
    compiled_casts: bool = typer.Option(
        False, "--compiled-casts", help="Time casts by torch.compile too, which takes a while."
    ),
    rounds: str = typer.Option(
        None, "--rounds", metavar="R", help="Of each product without casts, in balanced order [3; on a CPU 1]."
    ),
    seconds: str = typer.Option(
        None, "--seconds", metavar="S", help="For each timing, at least 20 times a round [0.1]."
    ),
    instance: str = typer.Option(
        "auto", "--instance", autocompletion=names.instances, help="Name of this machine in the catalogue, or auto."
    ),
    name: str = of_run(),
    allow_busy: bool = of_run(),
    seed: str = of_run("Seed of the operands"),
    kept: str = typer.Option(
        None, "--record", metavar="RECORD", help="Measure nothing: show one that was kept, a file or a run's id."
    ),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw the products, .png or .svg."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=names.one_of(*FORMATS), help="How to print."
    ),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records go."),
) -> None:
    """Matrix products by shape, in bf16 and fp8, each proved before it is timed."""
    from fp8bench.cli.catalog import load_catalog
    from fp8bench.cli.kept import refuse_beside_record, tell_broken
    from fp8bench.launch.gemm import GemmRequest, exit_code, measure, prepare
    from fp8bench.records.named import find_kept
    from fp8bench.report.figures.paper import require_drawable
    from fp8bench.schema.errors import require_known
    from fp8bench.schema.gemm import GemmRecord

    require_known("--format", form, FORMATS, "fp8bench gemm --help")
    if plot is not None:
        require_drawable(plot)
    if kept is not None:
        refuse_beside_record(
            {
                "--workload": workload,
                "--batch-size": batch_size,
                "--shape": shapes,
                "--sweep": sweep,
                "--precision": precisions,
                "--compiled-casts": compiled_casts,
                "--rounds": rounds,
                "--seconds": seconds,
                "--seed": seed,
            }
        )
        _show(find_kept(kept, results_dir, GemmRecord, tell_broken), load_catalog(results_dir), form, plot)
        return
    request = GemmRequest(
        workload=workload,
        batch_size=batch_size,
        shapes=tuple(shapes or ()),
        sweep=sweep,
        precisions=tuple(precisions or ()),
        compiled_casts=compiled_casts,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        instance=instance,
        name=name,
        allow_busy=allow_busy,
        results_dir=results_dir,
    )
    record, path = measure(prepare(request, os.environ), log)
    log(f"kept as {path}")
    _show(record, load_catalog(results_dir), form, plot)
    raise typer.Exit(exit_code(record, request.precisions))


def _show(record: "GemmRecord", catalog: "Catalog", form: str, plot: Path | None) -> None:
    """Printed, and drawn where that was asked for."""
    from fp8bench.report.gemm.document import PICTURE, document

    shown = document([record], catalog)
    show(shown, form)
    draw(shown, PICTURE, plot)
