"""`fp8bench import`: put a figure from elsewhere beside the measured ones. It never passes for measured."""

from pathlib import Path

import typer


def import_figure(
    instance: str = typer.Option(..., "--instance", help="Name in the catalogue."),
    mode: str = typer.Option(..., "--mode", help="Mode, with its recipe if it was said."),
    step_time: str = typer.Option(..., "--step-time", metavar="SECONDS", help="Of one step."),
    batch_size: str = typer.Option(..., "--batch-size", metavar="N", help="Samples a GPU and step."),
    gpus: str = typer.Option(..., "--gpus", metavar="N", help="GPUs over all."),
    source: str = typer.Option(..., "--source", help="Where the figure is from: a title, an address."),
    published_on: str = typer.Option(
        None, "--published-on", metavar="DATE", help="Makes it `published`, priced for that day; else `external`."
    ),
    workload: str = typer.Option("vit-huge", "--workload", help="What was trained."),
    compile: bool = typer.Option(None, "--compile/--no-compile", help="Whether torch.compile was on [unsaid]."),
    attention: str = typer.Option(None, "--attention", help="Attention implementation [unsaid]."),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are."),
) -> None:
    """Import a step time from an article or another tool, always marked as such."""
    from fp8bench.cli.output import load_catalog, log
    from fp8bench.kinds.run.figure_shown import told
    from fp8bench.launch.imported import ImportedFigure, to_record
    from fp8bench.launch.plausible import doubts
    from fp8bench.pricing.catalog import find, require_read
    from fp8bench.records import results
    from fp8bench.schema.plain_text import inert

    figure = ImportedFigure.parse(
        mode=mode,
        workload=workload,
        step_time_s=step_time,
        batch_size=batch_size,
        gpus=gpus,
        source=source,
        published_on=published_on,
        compile=compile,
        attention=attention,
    )
    catalog = load_catalog(results_dir)
    require_read(catalog, [instance])
    key = find(catalog, instance, results.known_instances(results_dir)).key
    require_read(catalog, [key])
    results.require_writable(results_dir)
    record = to_record(figure, key)
    kept = [one.record for one in results.read(results_dir, [key])]
    typer.echo(results.write(record, results_dir))
    for warning in (*doubts(figure, key, catalog), *told(record, kept)):
        log(f"warning: {inert(warning)}")
