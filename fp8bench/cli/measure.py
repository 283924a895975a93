"""The command of a kind whose call makes one record: measure, keep and show; with --record, show a kept record."""

import os
import shlex
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import create_model

from fp8bench import registry
from fp8bench.cli.command import command
from fp8bench.cli.nodes import as_torchrun_has_it, meet
from fp8bench.cli.options import Form, Unread, option
from fp8bench.cli.output import draw, load_catalog, log, show, shown_after_keeping
from fp8bench.config.options import Options
from fp8bench.kinds.one_record import OF_THE_MACHINE, OneRecord, Request
from fp8bench.launch.nodes.agent import Agent
from fp8bench.launch.nodes.executor import NodesExecutor
from fp8bench.launch.place import register
from fp8bench.records import results
from fp8bench.records.named import find_kept
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import flag_of
from fp8bench.schema.private import fit
from fp8bench.tables.chart import require_drawable


def command_of(name: str, summary: str) -> Any:
    """Return the command of a kind, with its own options, then those that every kind has."""
    kind: OneRecord[Any, Any, Any] = registry.kind(name)
    figures: dict[str, Any] = {
        option_name: (Annotated[Path | None, option("FILE", f"Draw {what}, .png, .svg or .pdf.")], None)
        for option_name, (_, what) in kind.figures.items()
    }

    def answer(
        request: Request,
        plots: Options,
        record: Annotated[
            str | None, option("RECORD", "Measure nothing: show one that was kept, a file or a run's id.")
        ] = None,
        form: Form = "table",
    ) -> None:
        for path in filter(None, vars(plots).values()):
            require_drawable(path)

        def shown(found: Any) -> None:
            document = kind.document([found], load_catalog(request.results_dir))
            show(document, form)
            for option_name, (figure, _) in kind.figures.items():
                draw(document, figure, getattr(plots, option_name))

        if record is not None:
            for given in sorted(request.model_fields_set - OF_THE_MACHINE):
                if (value := getattr(request, given)) not in (None, False):
                    flag = flag_of(given, isinstance(value, tuple))
                    what = f"--record shows what was kept, and {flag} belongs to a measurement"
                    raise UsageError(what, "Give one of them")
            shown(find_kept(record, request.results_dir, kind.record, Unread()))
            return
        with as_torchrun_has_it(os.environ, alone=False) if kind.on_nodes else nullcontext((None, None)) as (_, agent):
            made = fit(_measured(kind, request, agent))
            path = results.write(made, request.results_dir)
            log(f"kept as {path}")
            shown_by = shlex.join(["fp8bench", kind.name, "--record", str(path)])
            with shown_after_keeping(f"the record is kept as {path}", shown_by):
                shown(made)
            raise typer.Exit(kind.exit_code(made, request))

    plots = create_model("Figures", __base__=Options, **figures)
    return command(name, answer, summary, {"request": kind.request, "plots": plots})


def _measured(kind: OneRecord[Any, Any, Any], request: Request, agent: Agent | None) -> Any:
    """On a node that follows another, raises typer.Exit when its part is done."""
    if agent is None:
        prepared = kind.prepare(request, os.environ)
        register(prepared, None, date.today(), log)
        return kind.measure(prepared, log)
    prepared = meet(agent, request, lambda: kind.prepare(request, os.environ))
    executor = NodesExecutor(agent)
    if not agent.leads:
        raise typer.Exit(executor.follow(lambda _config: prepared.warnings))
    register(prepared, None, date.today(), log)
    marks = (*prepared.warnings, *agent.marks)
    prepared = replace(prepared, warnings=marks, machines=agent.machines)
    return kind.measure(prepared, log, executor)
