"""`fp8bench sweep`: finds the cheapest configuration of this machine, by short looks, then rounds of the best."""

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fp8bench import registry
from fp8bench.cli.command import resolved
from fp8bench.cli.options import Emit, Form, option
from fp8bench.cli.output import load_catalog, log, require_script, show, write_script
from fp8bench.cli.progress import OfSweep, shown
from fp8bench.config.request import LATEST, RunRequest, resolve
from fp8bench.kinds.run import script
from fp8bench.kinds.run.sweep import document, plan_document
from fp8bench.launch import session as launching
from fp8bench.launch.assemble import new_session_id
from fp8bench.launch.batch_size import blank_search
from fp8bench.launch.forecast import obstacle, price_today
from fp8bench.launch.halving import Halving, space, switched_on
from fp8bench.launch.place import register
from fp8bench.launch.prepare import examined, prepare
from fp8bench.launch.processes.watch import Executor
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.records.files import held
from fp8bench.schema.config import AUTO, Device, RunConfig, mode_label
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.option import Option

ROUND_STEPS = 30
"""Timed steps of a round, at least, in place of `run`'s: at the largest batches, which tend to win, a hundred steps
take more than a minute, and tell no more about how processes differ.
"""

USUAL: dict[Device, dict[str, tuple[Any, ...]]] = {
    "cuda": {
        "compile": ("auto", "blocks", "off"),
        "cuda_graphs": ("auto", "off"),
        "te_attention": ("te", "sdpa"),
        "batch_size": ("auto",),
    },
    # Compiling on a CPU takes longer than everything else, and batches that fill the host's memory take minutes per
    # step.
    "cpu": {"compile": ("auto",), "cuda_graphs": ("auto",), "te_attention": ("te",), "batch_size": (16, 32)},
}
"""Settings that take a list here, and what is searched if nothing is given, with the usual value first."""


def sweep(
    config: Annotated[Path | None, option("FILE", "YAML file with settings, as of `run`.")] = None,
    batch_size: Annotated[str | None, option("LIST|auto", "Samples a GPU: 64,256 or auto [auto; CPU 16,32].")] = None,
    compile: Annotated[str | None, option("LIST", "Of auto,on,blocks,off [auto,blocks,off; CPU auto].")] = None,
    cuda_graphs: Annotated[str | None, option("LIST", "Of auto,on,off [auto,off; CPU auto].")] = None,
    te_attention: Annotated[str | None, option("LIST", "Of te and sdpa [both].")] = None,
    steps: Annotated[str | None, option("N", f"Timed steps of a round, at least [{ROUND_STEPS}].")] = None,
    look_steps: Annotated[int, Field(ge=2, le=10_000), option("N", "Timed steps of a look.")] = 20,
    budget: Annotated[str, option("TIME|USD", "Of this call: 600s, 10min, 2h or 2USD.")] = "30min",
    session: Annotated[str | None, option("NAME|latest", "Name of the sweep; one that exists is resumed.")] = None,
    dry_run: Annotated[bool, Option("Print what would be looked at, its time and its cost; run nothing")] = False,
    quiet: Annotated[bool, Option("No progress; warnings and errors only")] = False,
    emit: Emit = None,
    form: Form = "table",
    **settings: Any,
) -> None:
    lists = {"batch_size": batch_size, "compile": compile, "cuda_graphs": cuda_graphs, "te_attention": te_attention}
    machine = this_machine(os.environ)
    device: Device = "cuda" if machine.has_gpu else "cpu"
    request, values = _request({**settings, "session": session, "steps": steps}, lists, config, device)
    planned = _planned(request, values, machine, look_steps, budget, emit is not None)
    launching.require_budget(planned)
    if dry_run:
        show(plan_document(planned), form)
        return
    require_script(emit, [] if planned.halving.candidates else [planned.prepared.entries[0].config])
    register(planned.prepared, request.price, date.today(), log)
    planned.looks_dir.mkdir(parents=True, exist_ok=True)
    remedy = "Wait until it ends, or choose another name with --session"
    with held(planned.looks_dir / ".lock", f"sweep {planned.name!r}", remedy, log), shown(quiet) as on:
        if not quiet:
            sizes = " and larger batches of the leader" if planned.halving.blank is not None else ""
            log(
                f"sweep {planned.name}: {len(planned.halving.candidates)} configurations to look at, usual "
                f"settings{sizes} first; {planned.halving.most_rounds} rounds of the best; budget {planned.budget.text}"
            )
        told = OfSweep(planned.budget.usd_per_hour, on)
        found, spent_s, turns = launching.run_sweep(planned, Executor(), told.begins, told.ended)
    _require_any(planned, found)
    show(document(planned, found, spent_s, turns), form)
    winner = found.standings().leaders[0]
    write_script(emit, (found.rounds.get(winner) or [found.looks[winner]])[-1:])


def _request(
    settings: dict[str, Any], lists: dict[str, str | None], config: Path | None, device: Device
) -> tuple[RunRequest, dict[str, tuple[Any, ...]]]:
    """Return the request, and the values of each setting in USUAL: those of the flag, otherwise that of a variable or
    file, otherwise the usual ones. Raises UsageError for a value that `run` refuses.
    """
    found = resolved(settings, config)
    request, values = found.request, dict(USUAL[device])
    if request.variants:
        what = f"{config} names variants, which `fp8bench run` measures: a sweep makes its own"
        raise UsageError(what, "Omit `variants` in the file that a sweep is given")
    for name in values:
        given = lists[name]
        if given is not None:
            words = [word.strip() for word in given.split(",") if word.strip()] or [given]
            each = [resolve({name: word}, {}, {}, None).request for word in words]
            values[name] = tuple(dict.fromkeys(getattr(one, name) for one in each))
        elif found.origins[name] != "default":
            values[name] = (getattr(request, name),)
    if AUTO in values["batch_size"] and len(values["batch_size"]) > 1:
        said = f"--batch-size {','.join(map(str, values['batch_size']))}"
        what = f"{said}: {AUTO} finds the sizes itself, so no size can be given with it"
        raise UsageError(what, f"Give a list of numbers, or {AUTO} alone")
    if found.origins["steps"] == "default":
        request = request.model_copy(update={"steps": ROUND_STEPS})
    return request, values


def _planned(
    request: RunRequest,
    values: dict[str, tuple[Any, ...]],
    machine: Machine,
    look_steps: int,
    budget: str,
    as_script: bool,
) -> launching.Sweep:
    """as_script: whether only what a script can be written of is looked at."""

    def why_not(config: RunConfig) -> str | None:
        return obstacle(config, machine, catalog) or (script.refusal(config) if as_script else None)

    name = launching.latest_sweep(request.results_dir) if request.session == LATEST else request.session
    entries = [one for one in registry.modes().values() if ("cuda" if machine.has_gpu else "cpu") in one.default_on]
    modes = tuple(mode_label(entry.name, recipe) for entry in entries for recipe in entry.recipes or (None,))
    # The usual value of each; if a batch size is to be found, the search begins at the machine's default.
    first = {setting: found[0] for setting, found in values.items()}
    auto = first["batch_size"] == AUTO
    update = {"session": None, "mode": request.mode or modes, **first, **({"batch_size": None} if auto else {})}
    prepared = prepare(request.model_copy(update=update), os.environ)
    base, catalog = prepared.entries[0].config, load_catalog(prepared.results_dir)
    limit = launching.Budget.parse(budget, price_today(prepared, catalog, request.price).usd_per_hour)
    examined([entry.config for entry in prepared.entries])
    bases = [entry.config if request.te_switch else switched_on(entry.config) for entry in prepared.entries]
    values = values | ({"batch_size": (base.batch_size,)} if auto else {})
    candidates, untried = space(bases, values, why_not)
    look = {"steps": look_steps, "warmup": min(5, base.warmup), "min_time_s": 0.0}
    blank = Halving(candidates, prepared.stop.rounds, blank_search(base) if auto else None, look, limit.seconds)
    return launching.Sweep(prepared, name or new_session_id(datetime.now(UTC)), blank, untried, limit)


def _require_any(sweep: launching.Sweep, found: Halving) -> None:
    now, looks = found.standings(), list(found.looks.items())
    if now.leaders:
        return
    if not looks:
        untried = [*found.not_looked_at(sweep.budget.text), *sweep.untried]
        why = untried[0][1] if untried else "none was requested"
        raise ModeUnavailable(f"no configuration can run here: {why}", "Name other modes with --mode")
    config, last = looks[-1]
    family = {3: ModeUnavailable, 4: MeasurementInvalid, 5: RunFailed}
    raise family.get(launching.exit_code_of(record.status for _, record in looks), RunFailed)(
        f"no configuration is left after {len(looks)} looks; the last one: {now.dropped[config]}",
        last.remedy or "See `fp8bench doctor`, and name other modes with --mode",
    )
