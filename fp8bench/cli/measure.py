"""The command of a kind whose call makes one record: measure, keep and show, or with --record show what was kept."""

import inspect
import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fp8bench.cli import names
from fp8bench.cli.command import Answer, request_parameters, with_parameters
from fp8bench.cli.output import FORMATS, draw, load_catalog, log, show, tell_broken

if TYPE_CHECKING:
    from fp8bench.kinds.one_record import OneRecord


def command_of(kind: "OneRecord[Any, Any, Any]") -> Answer:
    """Its options, then those that every kind has."""

    def answer(record: str | None, form: str, **given: Any) -> None:
        _answer(kind, record, form, given)

    figures = [
        _option(name, Path, None, "FILE", f"Draw {what}, .png, .svg or .pdf.")
        for name, (_, what) in kind.figures.items()
    ]
    shown = [
        _option("record", str, None, "RECORD", "Measure nothing: show one that was kept, a file or a run's id."),
        *figures,
        _option("form", str, "table", "|".join(FORMATS), "How to print.", "--format", names.one_of(*FORMATS)),
    ]
    return with_parameters(answer, [*request_parameters(kind.request), *shown])


def _option(
    name: str, kind: type, default: Any, metavar: str, help: str, flag: str | None = None, complete: Any = None
) -> inspect.Parameter:
    flag = flag or f"--{name.replace('_', '-')}"
    option = typer.Option(default, flag, metavar=metavar, help=help, autocompletion=complete)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=option, annotation=kind)


def _answer(kind: "OneRecord[Any, Any, Any]", kept: str | None, form: str, given: dict[str, Any]) -> None:
    """kept: names a record. given: the other options, by parameter."""
    from fp8bench.launch.place import register
    from fp8bench.records import results
    from fp8bench.records.named import find_kept
    from fp8bench.report.paper import require_drawable
    from fp8bench.schema.errors import require_known

    require_known("--format", form, FORMATS, f"fp8bench {kind.name} --help")
    plots = {name: given.pop(name) for name in kind.figures}
    for path in plots.values():
        if path is not None:
            require_drawable(path)
    asked = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value not in (None, False, [])
    }
    asked["results_dir"] = Path(asked.get("results_dir", kind.request.results_dir))
    request = kind.request(**asked)
    if kept is not None:
        _refuse_beside_record(kind, asked)
        _show(kind, find_kept(kept, request.results_dir, kind.record, tell_broken), request.results_dir, form, plots)
        return
    prepared = kind.prepare(request, os.environ)
    register(prepared, None, date.today(), log)
    record = kind.measure(prepared, log)
    log(f"kept as {results.write(record, request.results_dir)}")
    _show(kind, record, request.results_dir, form, plots)
    raise typer.Exit(kind.exit_code(record, request))


def _refuse_beside_record(kind: "OneRecord[Any, Any, Any]", given: dict[str, Any]) -> None:
    """Raises UsageError for an option of a measurement."""
    from fp8bench.kinds.one_record import OF_THE_MACHINE
    from fp8bench.schema.errors import UsageError

    for option in request_parameters(kind.request):
        if option.name in given.keys() - OF_THE_MACHINE:
            (flag,) = option.default.param_decls
            raise UsageError(f"--record shows what was kept, and {flag} belongs to a measurement", "Give one of them")


def _show(
    kind: "OneRecord[Any, Any, Any]", record: Any, results_dir: Path, form: str, plots: dict[str, Path | None]
) -> None:
    """Printed, and drawn where that was asked for."""
    document = kind.document([record], load_catalog(results_dir))
    show(document, form)
    for name, (figure, _) in kind.figures.items():
        draw(document, figure, plots[name])
