"""`fp8bench run`: proves, times and records one or more modes on this machine."""

import json
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import PositiveFloat

from fp8bench.cli.command import resolved
from fp8bench.cli.dry_run import document as settings_and_forecast
from fp8bench.cli.nodes import as_torchrun_has_it, meet
from fp8bench.cli.options import Emit, Unread, option
from fp8bench.cli.output import load_catalog, log, require_script, show, shown_after_keeping, warn, write_script
from fp8bench.cli.progress import OfSession, shown
from fp8bench.cli.remote import send_one, synced
from fp8bench.config.options import Share
from fp8bench.config.request import RunRequest
from fp8bench.kinds.kind import CompareOptions, View
from fp8bench.kinds.run.check_shown import UntilDecided
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.sessions import seconds
from fp8bench.kinds.run.shown import document
from fp8bench.launch.assemble import assemble
from fp8bench.launch.nodes.agent import Agent
from fp8bench.launch.nodes.executor import NodesExecutor
from fp8bench.launch.place import AUTO, elsewhere, register
from fp8bench.launch.plan import Schedule
from fp8bench.launch.prepare import Prepared, examined, marks, prepare, require_modes
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.session import exit_code_of, measure, session, written
from fp8bench.launch.signals import process_began_s
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.records import results
from fp8bench.records.named import parse_reference
from fp8bench.records.select import Filter, rounds_of
from fp8bench.schema.errors import Fp8benchError, ModeUnavailable, UsageError
from fp8bench.schema.option import Option
from fp8bench.schema.rank import RankReport
from fp8bench.stats.ratio import LIMIT
from fp8bench.tables.written import counted

USUAL_REGRESSION, USUAL_MINUTES = 0.03, 60
"""Of --until-decided: the limit of `fp8bench check`, and what a night has for it."""


def run(
    unread: Unread,
    config: Annotated[Path | None, option("FILE", "YAML file with these settings, or variants of a mode.")] = None,
    dry_run: Annotated[bool, Option("Print settings, what cannot run here, time and cost; run nothing")] = False,
    quiet: Annotated[bool, Option("No progress; warnings and errors only")] = False,
    as_json: Annotated[bool, Option("Print the records as JSON", flags=("--json",))] = False,
    notes: Annotated[bool, Option("Where the session's seconds went too, by phase and mode")] = False,
    until_decided: Annotated[Path | None, option("DIR", "Add rounds until `check` decides against it.")] = None,
    max_regression: Annotated[Share | None, option("3%", "Of --until-decided: how much longer a step is [3%].")] = None,
    max_minutes: Annotated[
        PositiveFloat | None, option("N", f"Of --until-decided: no round ends later [{USUAL_MINUTES}].")
    ] = None,
    emit: Emit = None,
    trace: Annotated[Path | None, option("FILE", "Keep the Chrome trace of the first mode's profile.")] = None,
    floor: Annotated[
        bool, Option("Measure first, half a minute, what this GPU reaches at best: `explain --floor`")
    ] = False,
    **settings: Any,
) -> None:
    # Entered here too, so that the other processes of torchrun get the code of --strict.
    with as_torchrun_has_it(os.environ, alone=dry_run) as (place, agent), unread:
        requested = resolved(settings, config)
        if trace is not None and trace.is_dir():
            # The profile would fail for it, after minutes.
            raise UsageError(f"--trace {trace} is a folder", "Name a file in it")
        # Another node may have no such folder, and adds the rounds that node 0 does.
        asked = until_decided, max_regression, max_minutes, requested.request.aa
        until = _until(*asked) if agent is None or agent.leads else None
        executor = _executor_of(agent, requested.request) if agent is not None else None
        with synced(requested.request.results_dir, measuring=True) as mirror:
            planned = _planned(requested.request) if dry_run and place is None else None
            prepared = prepare(requested.request, os.environ, place, agent.machines if agent else (), planned)
            named = bool(requested.request.mode or prepared.request.variants)
            requested = requested.resumed(prepared.resumed, prepared.request.session or "")
            answer = examined([entry.config for entry in prepared.entries], always=planned is not None)
            if dry_run:
                foreseen = settings_and_forecast(requested, prepared, answer, planned)
                show(foreseen, "json" if as_json else "table")
                nothing = len(foreseen.data["cannot_run"]) == len(prepared.entries)
                raise typer.Exit(ModeUnavailable.exit_code if nothing else 0)
            for note in prepared.notes:
                log(note)
            require_modes(answer, named)
            require_script(emit, (entry.config for entry in prepared.entries))
            register(prepared, requested.request.price, date.today(), log)
            with session(prepared, log) as rounds, shown(quiet) as on:
                say = log if not quiet else lambda _line: None
                records, paths, reached = [], [], mirror is not None
                listening = OfSession(rounds, on)
                more = None if until is None else until.of(prepared.results_dir, rounds.session_id, say)
                for entry, record, path in measure(
                    prepared, rounds, listening.begins, trace, say, process_began_s(), executor, more, floor
                ):
                    listening.ended(entry, record, path)
                    records.append(record)
                    paths.append(path)
                    # At once: a machine may be taken away. After a failure, the remote is not tried again here.
                    if mirror is not None and reached:
                        reached = send_one(mirror, path)
            if not records:
                log(f"nothing was left to run: session {rounds.session_id} has its rounds")
            key, results_dir = prepared.instance.key, prepared.results_dir
            words = ["fp8bench", "compare", key]
            words += [] if results_dir == Path("results") else ["--results-dir", str(results_dir)]
            several = f"the session's records are kept in {results_dir / key}"
            kept = f"the record is kept as {paths[0]}" if len(paths) == 1 else several
            with shown_after_keeping(kept, shlex.join(words)):
                if as_json:
                    typer.echo(json.dumps([record.model_dump(mode="json") for record in records], indent=1))
                else:
                    _print_session(rounds.session_id, prepared, unread, notes)
            write_script(emit, records)
            _say_whether_precise(rounds)
            if until is not None and (left := until.undecided(results_dir, rounds.session_id)):
                warn(f"--until-decided {until.reference}: no time or round is left. {left}")
            code = exit_code_of((record.status for record in records), named)
            code = _judge_itself(rounds) if code == 0 and rounds.entries[0].arm else code
            if code:
                raise typer.Exit(code)


def _executor_of(agent: Agent, request: RunRequest) -> NodesExecutor:
    """Let the nodes meet. Return node 0's executor; other nodes run what it requests, and exit."""
    # The session is node 0's to look up.
    alone = request.model_copy(update={"session": None})
    prepared = meet(agent, request, lambda: prepare(alone, os.environ, agent.place))
    executor = NodesExecutor(agent)
    if agent.leads:
        return executor
    keep = partial(_keep, prepared, request.price)
    raise typer.Exit(executor.follow(lambda config: marks(prepared, config), keep))


def _keep(prepared: Prepared, price: float | None, task: Task, reports: Sequence[RankReport]) -> None:
    """Keep a record in place of node 0, with its log and what is known of the instance."""
    now = datetime.now(UTC)
    try:
        register(prepared, price, now.date(), log)
        record = assemble(task.config, reports, prepared.instance.key, now, task.place)
        _, path = written(record, reports, prepared.results_dir)
    except (Fp8benchError, OSError) as error:
        warn(f"no record of what failed could be kept here: {error}")
    else:
        log(f"node 0 is gone, so the record of what failed is kept here: {path}")


def _planned(request: RunRequest) -> Machine | None:
    """Return the named instance as a machine, if this machine cannot be it. Raises UsageError for too many GPUs."""
    if request.instance == AUTO:
        return None
    planned = elsewhere(request.instance, this_machine(os.environ), request.results_dir)
    if planned is not None and (request.gpus or 0) > (has := len(planned.gpus)):
        what = f"--gpus {request.gpus} is requested, and {request.instance} has {counted(has, 'GPU')}"
        raise UsageError(what, f"Give --gpus {has} or less; `fp8bench compare --gpus` projects several nodes")
    return planned


def _until(reference: Path | None, limit: float | None, minutes: float | None, aa: bool) -> UntilDecided | None:
    for flag, given in (("--max-regression", limit), ("--max-minutes", minutes)):
        if reference is None and given is not None:
            raise UsageError(f"{flag} is given without --until-decided", "Name a reference with --until-decided")
    if reference is None:
        return None
    if aa:
        raise UsageError("--aa compares modes with themselves, not with --until-decided", "Omit one of the two")
    limit_s = 60 * (USUAL_MINUTES if minutes is None else minutes)
    return UntilDecided(reference, USUAL_REGRESSION if limit is None else limit, limit_s)


def _say_whether_precise(rounds: Schedule) -> None:
    precision = rounds.stop.precision
    if precision is None or rounds.precise():
        return
    found = [(entry.label, rounds.estimate(entry)) for entry in rounds.entries]
    widths = [f"{label} {each.half_width_share * 100:.1f} %" for label, each in found if each and each.half_width_share]
    log(
        f"--precision {precision * 100:g}% is not reached after {rounds.stop.max_rounds} rounds: half-widths are "
        f"{', '.join(widths) or 'unknown'}. Raise --max-rounds, or look for why processes differ: `fp8bench doctor`."
    )


def _judge_itself(rounds: Schedule) -> int:
    """Compare modes with themselves: a difference is a fault of the machine, or of the method's intervals."""
    check = rounds.self_check()
    if check is None:
        log("the A/A test has too few processes to judge by. Use more --rounds.")
        return 4
    compared = rounds.arms_compared()
    for label, ratio in compared:
        ends = f" ({ratio.interval[0]:.4f} to {ratio.interval[1]:.4f})" if ratio.interval else ""
        log(f"{label} compared with itself: {ratio.value:.4f}{ends}, {ratio.verdict}")
    passed = check.passed and all(ratio.verdict == "inconclusive" for _, ratio in compared)
    log(
        f"{check.excluding} of {check.splits} ways to split the processes of a mode look like a difference "
        f"({check.share * 100:.0f} %, at most {LIMIT * 100:.0f} %): the A/A test "
        + ("passes" if passed else "fails. No interval measured here can be trusted: see `fp8bench doctor`.")
    )
    return 0 if passed else 4


def _print_session(session_id: str, prepared: Prepared, unread: Unread, notes: bool) -> None:
    key, here = prepared.instance.key, prepared.here
    found, wanted = results.read(prepared.results_dir, [key]), Filter(session=session_id)
    kept = tuple(one for one in found if wanted.takes(one.record) and not (here and here.unlike_place(one.record)))
    if not kept:
        return
    # A session of variants compares different work on purpose: its rows are marked.
    unlike = bool(prepared.request.variants)
    options = CompareOptions((key,), date.today(), parse_reference(None, [key]), allow_mismatch=unlike)
    records = results.sound(results.Found(kept, found.broken), unread, rounds_of)
    made = document(compare(records, load_catalog(prepared.results_dir), options), view=View(notes=notes))
    if notes:
        made = made._replace(blocks=(*made.blocks, tuple(seconds([one.record for one in kept]))))
    show(made, "table", repeat=False)
