"""Checks everything about a run before its first worker starts, so that an invalid word fails in a second and not in an
hour: where it is measured, its plan, the session that it resumes, and what its model is made of if the name of its
workload leaves that open (a model of timm, or sizes that the user gave).
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from fp8bench import registry
from fp8bench.config.options import sizes_of
from fp8bench.config.request import RunRequest
from fp8bench.launch import resume
from fp8bench.launch.nodes.place import Elastic, elastic_from
from fp8bench.launch.place import Place, place_on
from fp8bench.launch.plan import Entry, Stop, entries, plan, stop
from fp8bench.launch.recipes import require_in_names, require_possible, with_layers
from fp8bench.machine.busy import require_idle
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.machine.identity import together
from fp8bench.records import results
from fp8bench.schema.batch import AUTO, BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.model import Answer, Asked

EXAMINES = (sys.executable, "-m", "fp8bench.numerics.model_facts")
EXAMINED_S = 300
"""timm's slowest model to examine takes 80 s on two cores; most take less than 5 s."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Place):
    """A run: what is executed, and as part of which session. here: the machine to which a resumed session must belong.
    request: with what the session brings, and the session's own name. resumed: settings taken from the session, by the
    request's names. to_size: configurations whose batch size is yet to be found. searches: how the batch sizes of the
    session were found. named: the instance as the user named it; None if it is this machine's or the session's. notes:
    lines about what was decided here and not by the user.
    """

    entries: list[Entry]
    stop: Stop
    request: RunRequest
    resumed: Mapping[str, Any] = field(default_factory=dict)
    to_size: tuple[RunConfig, ...] = ()
    searches: Mapping[RunConfig, BatchSearch] = field(default_factory=dict)
    named: str | None = None
    notes: tuple[str, ...] = ()


def marks(prepared: Prepared, config: RunConfig) -> tuple[str, ...]:
    """Return what a reader must know of the machine now (e.g. a busy GPU). Raises ModeUnavailable."""
    return require_idle(os.environ, None, prepared.request.allow_busy) if config.device == "cuda" else ()


def prepare(
    request: RunRequest,
    environ: Mapping[str, str],
    elastic: Elastic | None = None,
    machines: Sequence[MachineIdentity | None] = (),
    planned: Machine | None = None,
) -> Prepared:
    """Look at the machine and at the session that is resumed, and plan the run. Writes nothing. elastic: this process's
    place under torchrun. machines: of several nodes that have met, by node. planned: another machine, which is not
    here. Raises UsageError and ModeUnavailable.
    """
    if elastic is None and elastic_from(environ) is not None:
        what = "torchrun made this process one of a group, and this command measures with processes of its own"
        raise UsageError(what, "Call it without torchrun; `fp8bench run` works with it")
    machine = planned or this_machine(environ)
    place = place_on(machine, request.instance, request.results_dir, request.name, has_price=request.price is not None)
    if machines and place.here is not None:
        # All nodes together are the machine: a session continues when the same nodes meet again.
        place = replace(place, here=replace(place.here, machine=together(machines)))
    place = replace(place, here=None) if planned is not None else place
    named = "instance" in request.model_fields_set
    kept, resumed = resume.Kept(""), dict[str, Any]()
    if request.session is not None:
        auto = place.instance.key
        known = [auto] if named else results.known_instances(place.results_dir)
        records = [record for record, _ in results.read(place.results_dir, known)]
        if not named:
            place = resume.where_kept(request.session, place, records, machine)
        here = [record for record in records if record.instance == place.instance.key]
        kept = resume.find(request.session, place, here)
        resumed = resume.settings_of(kept, request, elastic is not None)
        if place.instance.key != auto:
            resumed["instance"] = place.instance.key
        if "mode" in resumed:
            require_in_names(resumed["mode"], request.fp8_layers, kept.session_id)
            resumed["fp8_layers"] = None
        request = request.model_copy(update={**resumed, "session": kept.session_id})
    configs = plan(request, machine, elastic)
    to_size = list(configs) if request.batch_size == AUTO else []
    if request.variants:
        to_size = [config for config, each in zip(configs, request.each(), strict=True) if each.batch_size == AUTO]
    require_possible(configs, place)
    configs, notes = with_layers(configs, place, to_size, kept.records)
    configs, searches = resume.sized(kept, configs, to_size)
    to_size = [config for config in to_size if config in configs and config not in searches]
    resume.refuse_unlike(kept, request, configs)
    return Prepared(
        **vars(place),
        entries=entries(request, configs),
        stop=stop(request, machine),
        request=request,
        resumed=resumed,
        to_size=tuple(to_size),
        searches=searches,
        named=request.instance if named else None,
        notes=notes,
    )


def examined(configs: Sequence[RunConfig], program: Sequence[str] = EXAMINES, always: bool = False) -> Answer | None:
    """Return what was found out about the model; None if the workload's name says it all, and nothing is examined,
    unless `always`. The model is built in a separate process, because the launcher imports no torch. configs: of one
    workload. Raises ModeUnavailable if no mode can be proved with the model, UsageError if no model has the sizes in
    the name, and RunFailed on a failure.
    """
    name = configs[0].workload
    if not always and registry.find_workload(name).member is None and not sizes_of(name):
        return None
    asked = Asked(configs=tuple(configs)).model_dump_json()
    why, remedy = "its answer cannot be read", f"See what `fp8bench --debug list workloads {name}` says"
    try:
        done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=EXAMINED_S, check=False)
        if done.returncode != 0:
            why = [f"exit code {done.returncode}", *filter(str.strip, done.stderr.splitlines())][-1]
        answer = Answer.model_validate_json(done.stdout if done.returncode == 0 else "")
    except (subprocess.TimeoutExpired, ValidationError) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"no answer within {EXAMINED_S} s"
        raise RunFailed(f"{name} could not be looked at: {why.rstrip('.')}", remedy) from error
    if answer.refusal is not None:
        raise answer.refusal.error()
    return answer


def require_modes(answer: Answer | None, named: bool) -> None:
    """Raise ModeUnavailable if a mode is refused and must run: all must if `named` by the user, otherwise one."""
    modes = answer.modes if answer is not None else ()
    refused = [one for one in modes if one is not None]
    if refused and (named or len(refused) == len(modes)):
        raise refused[0].error()
