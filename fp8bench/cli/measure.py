"""The command of a kind whose call makes one record: measure, keep and show; with --record, show a kept record."""

import inspect
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
from fp8bench.cli.command import Function, parameters_of, with_parameters
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
from fp8bench.tables.chart import require_drawable

Record = Annotated[str | None, option("RECORD", "Measure nothing: show one that was kept, a file or a run's id.")]


def command_of(entry: KindEntry) -> Function:
    """Return the command of a kind, with its own options, then those that every kind has."""
    kind: OneRecord[Any, Any, Any] = registry.load(entry)

    def answer(record: str | None, form: str, **given: Any) -> None:
        _answer(kind, record, form, given)

    figures = [
        _parameter(name, Annotated[Path | None, option("FILE", f"Draw {what}, .png, .svg or .pdf.")])
        for name, (_, what) in kind.figures.items()
    ]
    return with_parameters(
        answer,
        [*_parameters(kind), _parameter("record", Record), *figures, _parameter("form", Form, "table")],
    )


def _parameters(kind: OneRecord[Any, Any, Any]) -> list[inspect.Parameter]:
    """Return a kind's own options first, then those that all kinds share."""
    return parameters_of(kind.request, sorted(kind.request.model_fields, key=Request.model_fields.__contains__))


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


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
        _refuse_beside_record(kind, settings)
        _show(kind, find_kept(kept, request.results_dir, kind.record, tell_broken), request.results_dir, form, plots)
        return
    with _nodes(kind) as group:
        record = fit(_measured(kind, request, group))
        path = results.write(record, request.results_dir)
        log(f"kept as {path}")
        command = shlex.join(["fp8bench", kind.name, "--record", str(path)])
        with shown_after_keeping(f"the record is kept as {path}", command):
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


def _refuse_beside_record(kind: OneRecord[Any, Any, Any], given: dict[str, Any]) -> None:
    """Raise UsageError for an option that only applies to a measurement."""
    for one in _parameters(kind):
        if one.name in given.keys() - OF_THE_MACHINE:
            (flag,) = one.default.param_decls
            raise UsageError(f"--record shows what was kept, and {flag} belongs to a measurement", "Give one of them")


def _show(
    kind: OneRecord[Any, Any, Any], record: Any, results_dir: Path, form: str, plots: dict[str, Path | None]
) -> None:
    """Print the document, and draw the figures that were requested."""
    document = kind.document([record], load_catalog(results_dir))
    show(document, form)
    for name, (figure, _) in kind.figures.items():
        draw(document, figure, plots[name])
