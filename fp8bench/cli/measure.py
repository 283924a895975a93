"""The command of a kind whose call makes one record: measure, keep and show; with --record, show a kept record."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from fp8bench import registry
from fp8bench.cli.command import command, options_of
from fp8bench.cli.nodes import Group, as_torchrun_has_it
from fp8bench.cli.options import Form, option
from fp8bench.cli.output import draw, load_catalog, log, show, shown_after_keeping, tell_broken
from fp8bench.entries import KindEntry
from fp8bench.kinds.one_record import OF_THE_MACHINE, OneRecord, Request
from fp8bench.launch.place import register
from fp8bench.records import results
from fp8bench.records.fit import fit
from fp8bench.records.named import find_kept
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import flag_of
from fp8bench.tables.chart import require_drawable


def command_of(entry: KindEntry) -> Any:
    """Return the command of a kind, with its own options, then those that every kind has."""
    kind: OneRecord[Any, Any, Any] = registry.load(entry)
    own = sorted(options_of(kind.request), key=lambda declared: declared[0] in Request.model_fields)
    figures = [
        (name, Path, typer.Option(None, metavar="FILE", help=f"Draw {what}, .png, .svg or .pdf."))
        for name, (_, what) in kind.figures.items()
    ]

    def answer(
        record: Annotated[
            str | None, option("RECORD", "Measure nothing: show one that was kept, a file or a run's id.")
        ] = None,
        form: Form = "table",
        **given: Any,
    ) -> None:
        _answer(kind, record, form, given)

    return command(entry.name, answer, entry.summary, [*own, *figures])


def _answer(kind: OneRecord[Any, Any, Any], kept: str | None, form: str, given: dict[str, Any]) -> None:
    """Run the command. kept: names a record. given: the other options, by parameter."""
    plots = {name: given.pop(name) for name in kind.figures}
    for path in plots.values():
        if path is not None:
            require_drawable(path)
    settings = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value not in (None, False, [])
    }
    request = kind.request(**settings)
    if kept is not None:
        for name in kind.request.model_fields:
            if name in settings.keys() - OF_THE_MACHINE:
                flag = flag_of(name).removesuffix("s") if isinstance(settings[name], tuple) else flag_of(name)
                raise UsageError(
                    f"--record shows what was kept, and {flag} belongs to a measurement", "Give one of them"
                )
        _show(kind, find_kept(kept, request.results_dir, kind.record, tell_broken), request.results_dir, form, plots)
        return
    with _nodes(kind) as group:
        record = fit(_measured(kind, request, group))
        path = results.write(record, request.results_dir)
        log(f"kept as {path}")
        shown_by = shlex.join(["fp8bench", kind.name, "--record", str(path)])
        with shown_after_keeping(f"the record is kept as {path}", shown_by):
            _show(kind, record, request.results_dir, form, plots)
        raise typer.Exit(kind.exit_code(record, request))


@contextmanager
def _nodes(kind: OneRecord[Any, Any, Any]) -> Iterator[Group | None]:
    """The nodes that torchrun has made, for a kind that is measured on several; None if there is one."""
    if kind.over_nodes is None:
        yield None
        return
    with as_torchrun_has_it(os.environ, alone=False) as (_, group):
        yield group


def _measured(kind: OneRecord[Any, Any, Any], request: Request, group: Group | None) -> Any:
    """The record. On a node that follows another, raises typer.Exit when its part is done."""
    if group is None or kind.over_nodes is None:
        prepared = kind.prepare(request, os.environ)
        register(prepared, None, date.today(), log)
        return kind.measure(prepared, log)
    prepared = group.meet(request, lambda: kind.prepare(request, os.environ), lambda prepared: prepared.alike)
    agent = group.agent
    if not agent.leads:
        raise typer.Exit(kind.over_nodes.follow(prepared, agent))
    register(prepared, None, date.today(), log)
    marks = (*prepared.warnings, *agent.verdict.marks)
    prepared = replace(prepared, warnings=marks, machines=agent.verdict.machines)
    return kind.over_nodes.lead(prepared, agent, log)


def _show(
    kind: OneRecord[Any, Any, Any], record: Any, results_dir: Path, form: str, plots: dict[str, Path | None]
) -> None:
    """Print the document, and draw the figures that were requested."""
    document = kind.document([record], load_catalog(results_dir))
    show(document, form)
    for name, (figure, _) in kind.figures.items():
        draw(document, figure, plots[name])
