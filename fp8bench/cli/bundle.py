"""`fp8bench results bundle`: keeps the records behind a table in one file, for a paper; `compare --bundle` reads it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fp8bench import __version__
from fp8bench.cli.options import ResultsDirs, WhatIf, argument
from fp8bench.cli.output import Unread, log
from fp8bench.cli.selection import Selection
from fp8bench.kinds.run import gather
from fp8bench.kinds.run.method import method
from fp8bench.kinds.run.shown import document
from fp8bench.kinds.view import View
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.records.bundle import CATALOGUE, RESULTS, TEXT, Bundle, write
from fp8bench.records.files import samples_path
from fp8bench.scaling.projected import measured_links
from fp8bench.tables.render import render


def bundle(
    file: Annotated[Path, argument("FILE", "Where it is written.")],
    instances: Annotated[
        tuple[str, ...], argument("INSTANCE...", "Names in the catalogue or in the results.", "instances")
    ],
    selection: Selection,
    price: WhatIf = (),
    results_dir: ResultsDirs = (Path("results"),),
) -> None:
    """Keep a table's records, prices and method in one file, from which `compare` prints it anywhere."""
    options, catalog = selection.resolved(instances, results_dir, price, reference=selection.reference)
    kept, unread = results.read(results_dir, options.instances), Unread()
    found = gather(kept, options, catalog, results_dir, unread)
    used = {run_id.partition("@")[0] for run_id in found.rounds}
    lenders = {row.measured_on for row in found.comparison.rows if row.measured_on}
    shown = {*options.instances, *lenders}
    borrowed = results.read(results_dir, lenders)
    used |= {one.parity.of_run for one, _ in borrowed if one.run_id in used and one.parity and one.parity.of_run}
    lent = [one.path for one in borrowed if one.record.run_id in used]
    # By which several nodes are projected.
    names = [Path(one.instance, f"{one.run_id}.json") for one in measured_links(results_dir, shown)]
    links = [folder / name for name in names for folder in results_dir]
    every = list(dict.fromkeys([*(one.path for one in kept), *lent, *filter(Path.exists, links)]))
    # Of other instances, what the user pays is nobody else's business.
    entries = {**load().instances, **{key: one for key, one in catalog.instances.items() if key in shown}}
    asked = {name: value for name, value in selection.model_dump(mode="json").items() if value not in (None, False)}
    made = Bundle(instances=options.instances, today=options.today, selection=asked, prices=price, fp8bench=__version__)
    table = render(document(found.comparison, view=View(notes=True)), "markdown")
    parts = {
        TEXT: f"{method(found.comparison, options)}\n\n{table}\n".encode(),
        CATALOGUE: catalog.model_copy(update={"instances": entries, "unread": ()}).model_dump_json().encode(),
        **dict(_files(every)),
    }
    write(file, made, parts)
    log(f"{len(every)} records are kept; `fp8bench compare --bundle {shlex.quote(str(file))}` prints their table")
    unread.end(False)


def _files(paths: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Return each record and its samples, by their names in a bundle."""
    found = {path: None for record in paths for path in (record, samples_path(record)) if path.exists()}
    return [(f"{RESULTS}/{path.parent.name}/{path.name}", path.read_bytes()) for path in found]
