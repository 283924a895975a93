"""`fp8bench results`: sends records to another host, verifies each strictly, imports a figure from elsewhere, and keeps
the records behind a table in one file, for a paper.
"""

import shlex
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from fp8bench import __version__, registry
from fp8bench.cli.options import Form, ResultsDir, ResultsDirs, Unread, argument, option
from fp8bench.cli.output import load_catalog, log, show, warn
from fp8bench.cli.selection import Selection
from fp8bench.config.options import Folder
from fp8bench.kinds.kind import View, WhatIf
from fp8bench.kinds.run import gather
from fp8bench.kinds.run.sentences import method
from fp8bench.kinds.run.shown import document
from fp8bench.launch.assemble import ImportedFigure, doubts, to_record
from fp8bench.pricing.catalog import find, load, require_read
from fp8bench.records import results
from fp8bench.records.bundle import CATALOGUE, RESULTS, TEXT, Bundle, write
from fp8bench.records.files import samples_path
from fp8bench.records.select import select
from fp8bench.remote.mirror import Mirror, names_in, send
from fp8bench.scaling.projected import measured_links
from fp8bench.schema.address import LIST, address_of, is_address, parse
from fp8bench.schema.errors import MeasurementInvalid, UsageError
from fp8bench.schema.record import ThroughputRecord
from fp8bench.tables.document import CsvLines, Document, Part, Sentence, Warned, blocks
from fp8bench.tables.render import render
from fp8bench.tables.study import table_of, word
from fp8bench.tables.written import counted

Source = Annotated[Folder, option("DIR|URL", "Where records are: a folder or an address.")]


def push(
    url: Annotated[str, argument("URL", f"Where to: {LIST}.")],
    form: Form = "table",
    results_dir: Source = Path("results"),
) -> None:
    """Send what the address lacks; nothing is overwritten. Exit code 4 if a file was refused."""
    if not is_address(url):
        what = f"{url!r} is no address that records could be sent to"
        raise UsageError(what, f"Give {LIST}; the folder that is sent is named by --results-dir")
    mirror = Mirror(parse(url))
    itself = results_dir.resolve() == mirror.folder.resolve()
    done = mirror.push() if itself else send(mirror.store, results_dir, names_in(results_dir), {})
    sent, same, refused = map(len, (done.sent, done.same, done.refused))
    said = f"{mirror.address}: {counted(sent, 'file')} sent, {same} there already, {refused} refused."
    rows = [*(("sent", name) for name in done.sent), *(("refused", name) for name in done.refused)]
    why = "a refused file has the name of another one there, which is kept, or is a link out of the folder"
    data = {"address": str(mirror.address), **vars(done)}
    _show(rows, ("result", "file"), [Sentence(said), *([Warned(why)] if refused else [])], data, form, refused)


def verify(form: Form = "table", results_dir: Source = Path("results")) -> None:
    """Read every record strictly and check it against itself. Exit code 4 if one is bad."""
    # No kind measures throughput records, because they are made from publications.
    models = {name: registry.kind(name).record for name in registry.KINDS} | {"throughput": ThroughputRecord}
    read, bad = results.verify(results_dir, models)
    if not read:
        raise UsageError(f"{results_dir} has no records to verify", "Name the folder of results with --results-dir")
    where = str(address_of(results_dir) or results_dir)
    said = [Sentence(f"{where}: {counted(read, 'file')} read, {len(bad)} bad.")]
    data = {"where": where, "read": read, "bad": [{"file": path, "reason": why} for path, why in bad.items()]}
    _show([*bad.items()], ("file", "reason"), said, data, form, len(bad))


def _show(
    rows: Sequence[tuple[str, ...]],
    headings: tuple[str, ...],
    said: Sequence[Part],
    data: object,
    form: str,
    wrong: int,
) -> None:
    table = [table_of([word(name, itemgetter(place)) for place, name in enumerate(headings)], rows)] if rows else []
    show(Document(blocks(table, said), data=data, lines=CsvLines(headings, tuple(rows))), form)
    if wrong:
        raise typer.Exit(MeasurementInvalid.exit_code)


def import_figure(
    instance: Annotated[str, option("NAME", "Name in the catalogue.")],
    figure: ImportedFigure,
    results_dir: ResultsDir = Path("results"),
) -> None:
    """Import a step time from an article or another tool, always marked as such."""
    catalog = load_catalog(results_dir)
    require_read(catalog, [instance])
    key = find(catalog, instance, results.known_instances(results_dir)).key
    require_read(catalog, [key])
    results.require_writable(results_dir)
    record = to_record(figure, key)
    everything = [*(one.record for one in results.read(results_dir, [key])), record]
    typer.echo(results.write(record, results_dir))
    for warning in doubts(figure, key, catalog):
        warn(warning)
    in_order = sorted(everything, key=lambda one: one.created_utc)
    if record.run_id not in {one.run_id for group in select(in_order, every=False) for one in group.rounds}:
        warn(
            "tables show measured records, and of the same work the latest figure, in place of this one: "
            f"`fp8bench compare {key} --all --allow-mismatch` has it"
        )


def bundle(
    file: Annotated[Path, argument("FILE", "Where it is written.")],
    instances: Annotated[tuple[str, ...], argument("INSTANCE", "As those of `compare`.")],
    selection: Selection,
    price: WhatIf = (),
    results_dir: ResultsDirs = (Path("results"),),
) -> None:
    """Keep a table's records, prices and method in one file, from which `compare` prints it anywhere."""
    view = View(price=price, notes=True)
    options, catalog = selection.resolved(instances, results_dir, view)
    kept, unread = results.read(results_dir, options.instances), Unread()
    found = gather(kept, options, catalog, results_dir, unread)
    used = {run_id.partition("@")[0] for row in found.rows for run_id in row.run_ids}
    lenders = {row.measured_on for row in found.rows if row.measured_on}
    shown = {*options.instances, *lenders}
    borrowed = results.read(results_dir, lenders)
    used |= {one.parity.of_run for one, _ in borrowed if one.run_id in used and one.parity and one.parity.of_run}
    lent = [one.path for one in borrowed if one.record.run_id in used]
    # By which several nodes are projected.
    names = [Path(one.instance, f"{one.run_id}.json") for one in measured_links(results_dir, shown)]
    links = [folder / name for name in names for folder in results_dir]
    every = list(dict.fromkeys([*(one.path for one in kept), *lent, *filter(Path.exists, links)]))
    files = dict.fromkeys(path for record in every for path in (record, samples_path(record)) if path.exists())
    # Of other instances, what the user pays is nobody else's business.
    entries = {**load().instances, **{key: one for key, one in catalog.instances.items() if key in shown}}
    asked = {name: value for name, value in selection.model_dump(mode="json").items() if value not in (None, False)}
    made = Bundle(instances=options.instances, today=options.today, selection=asked, prices=price, fp8bench=__version__)
    table = render(document(found, view=view), "markdown")
    parts = {
        TEXT: f"{method(found, options)}\n\n{table}\n".encode(),
        CATALOGUE: catalog.model_copy(update={"instances": entries, "unread": ()}).model_dump_json().encode(),
        # Each record and its samples, by their names in a bundle.
        **{f"{RESULTS}/{path.parent.name}/{path.name}": path.read_bytes() for path in files},
    }
    write(file, made, parts)
    log(f"{len(every)} records are kept; `fp8bench compare --bundle {shlex.quote(str(file))}` prints their table")


COMMANDS = {"push": push, "verify": verify, "import": import_figure, "bundle": bundle}
