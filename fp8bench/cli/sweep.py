"""`fp8bench sweep`: finds the cheapest configuration of this machine, by short looks, then rounds of the best."""

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fp8bench import registry
from fp8bench.cli.command import resolved
from fp8bench.cli.options import AsJson, Form, option, switch
from fp8bench.cli.output import load_catalog, log, show
from fp8bench.cli.progress import OfSweep, shown
from fp8bench.config.request import LATEST, RunRequest
from fp8bench.config.sources import resolve
from fp8bench.kinds.run.sweep import document
from fp8bench.kinds.run.sweep_plan import document as plan_document
from fp8bench.launch import session as launching
from fp8bench.launch.assemble import new_session_id
from fp8bench.launch.batch_size import blank_search
from fp8bench.launch.examined import examined
from fp8bench.launch.forecast import obstacle, price_today
from fp8bench.launch.place import register
from fp8bench.launch.prepare import prepare
from fp8bench.launch.sweep import budget as budgets
from fp8bench.launch.sweep import search
from fp8bench.launch.sweep.halving import Rule
from fp8bench.launch.sweep.space import Axes, space, switched_on
from fp8bench.machine.gpus import this_machine
from fp8bench.records import lock
from fp8bench.schema.batch import AUTO
from fp8bench.schema.config import mode_label
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable, RunFailed, UsageError

DEFAULT_BUDGET = "30min"
ROUND_STEPS = 30
"""Timed steps of a round, at least, in place of `run`'s: at the largest batches, which tend to win, a hundred steps
take more than a minute, and tell no more about how processes differ.
"""

LOOK_STEPS = 20
LOOK_WARMUP = 5
SEVERAL = ("compile", "cuda_graphs", "te_attention", "batch_size")
"""Settings that take a list here."""

USUAL: dict[str, dict[str, tuple[Any, ...]]] = {
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
"""What is searched if nothing is given, with the usual value first."""


def sweep(
    config: Annotated[Path | None, option("FILE", "YAML file with settings, as of `run`.")] = None,
    batch_size: Annotated[
        str | None, option("LIST|auto", "Samples a GPU and step: 64,256 or auto [auto; on a CPU 16,32].")
    ] = None,
    compile: Annotated[
        str | None, option("LIST", "Of auto, on, blocks and off [auto,blocks,off; on a CPU auto].")
    ] = None,
    cuda_graphs: Annotated[str | None, option("LIST", "Of auto, on and off [auto,off; on a CPU auto].")] = None,
    te_attention: Annotated[str | None, option("LIST", "Of te and sdpa [both].")] = None,
    steps: Annotated[str | None, option("N", f"Timed steps of a round, at least [{ROUND_STEPS}].")] = None,
    look_steps: Annotated[int, Field(ge=2, le=10_000), option("N", "Timed steps of a look.")] = LOOK_STEPS,
    budget: Annotated[str | None, option("TIME", f"Of this call: 600s, 10min or 2h [{DEFAULT_BUDGET}].")] = None,
    budget_usd: Annotated[float | None, option("USD", "The same in money.")] = None,
    session: Annotated[
        str | None, option("NAME|latest", "Name of the sweep; one that exists is resumed, nothing repeated.")
    ] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "Print what would be looked at, its time and its cost; run nothing.")
    ] = False,
    quiet: Annotated[bool, switch("--quiet", "No progress; warnings and errors only.")] = False,
    form: Form = "table",
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    lists = {"batch_size": batch_size, "compile": compile, "cuda_graphs": cuda_graphs, "te_attention": te_attention}
    given = {
        name: tuple(filter(None, map(str.strip, text.split(",")))) for name, text in lists.items() if text is not None
    }
    planned, price = _planned(
        {**settings, "session": session, "steps": steps}, given, config, look_steps, (budget, budget_usd)
    )
    search.require_budget(planned)
    if dry_run:
        show(plan_document(planned), "json" if as_json else form)
        return
    register(planned.prepared, price, date.today(), log)
    planned.looks_dir.mkdir(parents=True, exist_ok=True)
    remedy = "Wait until it ends, or choose another name with --session"
    with lock.held(planned.looks_dir / ".lock", f"sweep {planned.name!r}", remedy, log), shown(quiet) as on:
        if not quiet:
            sizes = " and larger batches of the leader" if planned.rule.blank is not None else ""
            log(
                f"sweep {planned.name}: {len(planned.space.candidates)} configurations to look at, usual "
                f"settings{sizes} first; {planned.rule.rounds} rounds of the best; budget {planned.budget.text}"
            )
        swept = search.run(planned, launching.executor_of(planned.prepared), OfSweep(planned, on))
    _require_any(swept)
    show(document(swept), "json" if as_json else form)


def _planned(
    settings: dict[str, Any],
    lists: dict[str, tuple[str, ...]],
    config: Path | None,
    look_steps: int,
    limits: tuple[str | None, float | None],
) -> tuple[search.Sweep, float | None]:
    budgets.parse_time(limits[0] or DEFAULT_BUDGET)
    machine = this_machine(os.environ)
    device = "cuda" if machine.has_gpu else "cpu"
    request, values = _request_and_values(settings, lists, config, device)
    auto = values["batch_size"] == (AUTO,)
    session = search.latest(request.results_dir) if request.session == LATEST else request.session
    entries = [entry for entry in registry.modes().values() if device in entry.default_on]
    modes = tuple(mode_label(entry.name, recipe) for entry in entries for recipe in entry.recipes or (None,))
    # The usual value of each; if a batch size is to be found, the search begins at the machine's default.
    first = {name: found[0] for name, found in values.items()} | ({"batch_size": None} if auto else {})
    update = {"session": None, "mode": request.mode or modes, **first}
    prepared = prepare(request.model_copy(update=update), os.environ)
    examined([entry.config for entry in prepared.entries])
    base = prepared.entries[0].config
    sizes = (base.batch_size,) if auto else values["batch_size"]
    axes = Axes(sizes, values["compile"], values["cuda_graphs"], values["te_attention"])
    catalog = load_catalog(prepared.results_dir)
    bases = [entry.config if request.te_switch else switched_on(entry.config) for entry in prepared.entries]
    found = space(bases, axes, lambda one: obstacle(one, machine, catalog))
    price = price_today(prepared, catalog, request.price)
    rule = Rule(prepared.stop.rounds, blank_search(base) if auto else None)
    look = {"steps": look_steps, "warmup": min(LOOK_WARMUP, base.warmup), "min_time_s": 0.0}
    limit = budgets.budget(*limits, price.usd_per_hour, DEFAULT_BUDGET)
    return search.Sweep(prepared, session or new_session_id(datetime.now(UTC)), found, rule, look, limit), request.price


def _request_and_values(
    settings: dict[str, Any], lists: dict[str, tuple[str, ...]], config: Path | None, device: str
) -> tuple[RunRequest, dict[str, tuple[Any, ...]]]:
    """Return the request, and the values of each setting in SEVERAL: those of the flag, otherwise that of a variable or
    file, otherwise the usual ones. Raises UsageError for a value that `run` refuses.
    """
    requested = resolved(settings, config)
    if requested.request.variants:
        raise UsageError(
            f"{config} names variants, which `fp8bench run` measures: a sweep makes its own",
            "Omit `variants` in the file that a sweep is given",
        )
    values = {}
    for name in SEVERAL:
        if name in lists:
            each = [resolve({name: one}, {}, {}, None).request for one in lists[name]]
            values[name] = tuple(dict.fromkeys(getattr(one, name) for one in each))
        elif requested.origins[name] != "default":
            values[name] = (getattr(requested.request, name),)
        else:
            values[name] = USUAL[device][name]
    if AUTO in values["batch_size"] and len(values["batch_size"]) > 1:
        said = ",".join(map(str, values["batch_size"]))
        raise UsageError(
            f"--batch-size {said}: {AUTO} finds the sizes itself, so no size can be given with it",
            f"Give a list of numbers, or {AUTO} alone",
        )
    request = requested.request
    if requested.origins["steps"] == "default":
        request = request.model_copy(update={"steps": ROUND_STEPS})
    return request, values


def _require_any(swept: search.Swept) -> None:
    if swept.standings.leaders:
        return
    looks = list(swept.seen.looks.items())
    if not looks:
        why = swept.untried[0].why if swept.untried else "none was requested"
        raise ModeUnavailable(f"no configuration can run here: {why}", "Name other modes with --mode")
    config, last = looks[-1]
    family = {3: ModeUnavailable, 4: MeasurementInvalid, 5: RunFailed}
    raise family.get(launching.exit_code_of(record.status for _, record in looks), RunFailed)(
        f"no configuration is left after {len(looks)} looks; the last one: {swept.standings.dropped[config]}",
        last.remedy or "See `fp8bench doctor`, and name other modes with --mode",
    )
