"""`fp8bench switches`: what each option of Transformer Engine's layer gains, next to what was published."""

from pathlib import Path
from typing import Annotated

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.options import Form, Workload, option
from fp8bench.cli.output import show, tell_broken
from fp8bench.config.words import whole
from fp8bench.kinds.run.switches.document import document
from fp8bench.kinds.run.switches.published import read_published
from fp8bench.kinds.run.switches.rows import switch_rows
from fp8bench.records import results
from fp8bench.records.select import Filter
from fp8bench.schema.option import IMPORTED_BATCH_SIZE


def switches(
    instances: list[str] = typer.Argument(
        None, metavar="[INSTANCE]...", autocompletion=names.instances, help="Whose records [every one that has any]."
    ),
    workload: Workload = None,
    mode: Annotated[str | None, option("MODE[:RECIPE]", "Only records of this mode.", names.modes)] = None,
    batch_size: Annotated[str | None, option("N", "Only records of this batch size a GPU.")] = None,
    session: Annotated[str | None, option("NAME", "Only records of this session.")] = None,
    form: Form = "table",
    results_dir: list[Path] = typer.Option(
        [Path("results")], "--results-dir", metavar="DIR", help="Where records are; may be given several times."
    ),
) -> None:
    if workload is not None:
        registry.find_workload(workload)
    if mode is not None:
        registry.find_mode(mode)
    size = None if batch_size is None else whole("--batch-size", batch_size, 1, IMPORTED_BATCH_SIZE)
    wanted = Filter(workload=workload, mode=mode, batch_size=size, session=session)
    published = read_published()
    found = results.read_on_demand(
        results.read(results_dir, instances or results.known_instances(results_dir)),
        tell_broken,
        lambda records, whole: switch_rows(records, wanted, whole, published),
    )
    show(document(found, published), form)
