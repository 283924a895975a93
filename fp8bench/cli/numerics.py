"""`fp8bench numerics`: what error each precision mode adds to a layer, and how delayed scaling answers to a jump."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli import names
from fp8bench.cli.options import of_run
from fp8bench.cli.output import FORMATS, draw, show
from fp8bench.cli.progress import log

if TYPE_CHECKING:
    from fp8bench.schema.numerics import NumericsRecord


def numerics(
    mode: list[str] = typer.Option(
        None,
        "--mode",
        metavar="MODE",
        autocompletion=names.modes,
        help="Only this mode, with its recipe: te-fp8:current. Repeatable.",
    ),
    layer: list[str] = typer.Option(
        None,
        "--layer",
        metavar="linear|block",
        autocompletion=names.one_of("linear", "block"),
        help="Only this layer. Repeatable.",
    ),
    inputs: list[str] = typer.Option(
        None,
        "--input",
        metavar="KIND",
        help="Only normal, heavy-tailed or outlier; with -exact, moved to values that fp8 has. Repeatable.",
    ),
    width: str = typer.Option(
        None, "--width", metavar="N", help="Of the layers, a multiple of 16 [1280; on a CPU 64]."
    ),
    seed: str = of_run("Seed of weights and inputs"),
    instance: str = typer.Option(
        "auto", "--instance", autocompletion=names.instances, help="Name of this machine in the catalogue, or auto."
    ),
    name: str = of_run(),
    kept: str = typer.Option(
        None, "--record", metavar="RECORD", help="Measure nothing: show one that was kept, a file or a run's id."
    ),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw the errors, .png or .svg."),
    history_plot: Path = typer.Option(None, "--history-plot", metavar="FILE", help="Draw the jump, .png or .svg."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=names.one_of(*FORMATS), help="How to print."
    ),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where the record goes."),
) -> None:
    """What error each precision mode adds to a layer against float64, and how delayed scaling answers to a jump."""
    from fp8bench.cli.kept import refuse_beside_record, tell_broken
    from fp8bench.launch import numerics as launch
    from fp8bench.records import results
    from fp8bench.records.named import find_kept
    from fp8bench.report.figures.paper import require_drawable
    from fp8bench.schema.errors import require_known
    from fp8bench.schema.numerics import NumericsRecord

    require_known("--format", form, FORMATS, launch.HELP)
    for path in (plot, history_plot):
        if path is not None:
            require_drawable(path)
    if kept is not None:
        refuse_beside_record({"--mode": mode, "--layer": layer, "--input": inputs, "--width": width, "--seed": seed})
        _show(find_kept(kept, results_dir, NumericsRecord, tell_broken), form, plot, history_plot)
        return
    request = launch.NumericsRequest(
        results_dir=results_dir,
        modes=tuple(mode or ()),
        layers=tuple(layer or ()),
        inputs=tuple(inputs or ()),
        width=width,
        seed=seed,
        instance=instance,
        name=name,
    )
    prepared = launch.prepare(request, os.environ)
    launch.settle(prepared)
    record = launch.examine(prepared, datetime.now(UTC), log)
    log(f"kept as {results.write(record, results_dir)}")
    _show(record, form, plot, history_plot)
    raise typer.Exit(launch.exit_code(record, named=bool(mode)))


def _show(record: "NumericsRecord", form: str, plot: Path | None, history_plot: Path | None) -> None:
    """Printed, and drawn where that was asked for."""
    from fp8bench.report.numerics.document import ERRORS, JUMP, document

    shown = document([record])
    show(shown, form)
    draw(shown, ERRORS, plot)
    draw(shown, JUMP, history_plot)
