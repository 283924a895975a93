"""Checks everything about a run before its first worker starts, so that an invalid word fails in a second and not in an
hour: where it is measured, its plan, the session that it resumes, and what its model is made of if the name of its
workload leaves that open (a model of timm, or sizes that the user gave).

A run that resumes a session takes its settings where the user gave none, and what does not belong to it is refused.
Rounds of one session make one row, so all must be of one machine, software and release of fp8bench, and have the same
settings and variables. The number of rounds may change, and modes may be added.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

from pydantic import ValidationError

from fp8bench import registry
from fp8bench.config.options import sizes_of
from fp8bench.config.request import LATEST, OBEYED_BY_WORKERS, RunRequest
from fp8bench.launch.nodes.place import Elastic, elastic_from
from fp8bench.launch.place import Place, moved, place_on
from fp8bench.launch.plan import Entry, Stop, entries, owned, plan, setting_in_words, stop
from fp8bench.launch.recipes import require_in_names, require_possible, with_layers, words_of
from fp8bench.machine.gpus import Machine, require_idle, this_machine
from fp8bench.machine.identity import Here, git_state, together
from fp8bench.records import results
from fp8bench.records.select import Filter, latest_first, session
from fp8bench.schema.config import AUTO, BatchSearch, RunConfig, VariantSettings
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import made_of
from fp8bench.schema.machine import MachineIdentity, checkout, checkout_of, same_machine
from fp8bench.schema.model import Answer, Asked
from fp8bench.schema.option import flag_of
from fp8bench.schema.record import Record, RequestedMode

EXAMINES = (sys.executable, "-m", "fp8bench.numerics.model_facts")
EXAMINED_S = 300
"""timm's slowest model to examine takes 80 s on two cores; most take less than 5 s."""

SETTINGS = {"gpus": "world_size", "workload": "workload", **{name: name for name in OBEYED_BY_WORKERS}}
"""Maps a request's field to the field of a configuration that it becomes."""

REQUESTED_AS = {of_config: name for name, of_config in SETTINGS.items()}

OTHER_SESSION = "choose another name with --session"


@dataclass(frozen=True, kw_only=True)
class Prepared(Place):
    """A run: what is executed, and as part of which session. here: the machine to which a resumed session must belong.
    request: with what the session brings. resumed: settings taken from the session, by the request's names. to_size:
    configurations whose batch size is yet to be found. searches: how those of the session were found. notes: lines
    about what was decided here and not by the user.
    """

    entries: list[Entry]
    stop: Stop
    request: RunRequest
    resumed: Mapping[str, Any] = field(default_factory=dict)
    to_size: tuple[RunConfig, ...] = ()
    searches: Mapping[RunConfig, BatchSearch] = field(default_factory=dict)
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
    """Look at the machine and at the session that is resumed, and plan the run. Writes nothing. machines: of several
    nodes that have met, by node. planned: another machine, which is not here. Raises UsageError and ModeUnavailable.
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
    kept, resumed = Kept(""), dict[str, Any]()
    if request.session is not None:
        auto = place.instance.key
        known = [auto] if named else results.known_instances(place.results_dir)
        records = [record for record, _ in results.read(place.results_dir, known)]
        if not named:
            place = where_kept(request.session, place, records, machine)
        here = [record for record in records if record.instance == place.instance.key]
        kept = find_session(request.session, place, here)
        resumed = settings_of(kept, request, elastic is not None)
        if place.instance.key != auto:
            resumed["instance"] = place.instance.key
        if "mode" in resumed:
            require_in_names(resumed["mode"], request.fp8_layers, kept.session_id)
            resumed["fp8_layers"] = None
        request = request.model_copy(update={**resumed, "session": kept.session_id})
    configs = plan(request, machine, elastic)
    # Each variant makes one configuration, and a request without variants all of them.
    to_size = [config for config, each in zip(configs, cycle(request.each())) if each.batch_size == AUTO]
    require_possible(configs, place)
    configs, notes = with_layers(configs, place, to_size, kept.records)
    configs, searches = sizes_found(kept, configs, to_size)
    to_size = [config for config in to_size if config in configs and config not in searches]
    refuse_unlike(kept, request, configs)
    return Prepared(
        **vars(place),
        entries=entries(request, configs),
        stop=stop(request, machine),
        request=request,
        resumed=resumed,
        to_size=tuple(to_size),
        searches=searches,
        notes=notes,
    )


class Kept(NamedTuple):
    """The records of a session that can be resumed here, oldest first; empty if the session has yet to begin."""

    session_id: str
    records: Sequence[Record] = ()

    @property
    def configs(self) -> list[RunConfig]:
        return [record.config for record in self.records if record.config is not None]

    @property
    def searches(self) -> list[tuple[RunConfig, BatchSearch, bool]]:
        """The configurations whose batch size was searched for, with the search, and whether they ran at that size."""
        return [
            (one.config, one.session.batch_search, one.status == "ok")
            for one in self.records
            if one.config and one.session and one.session.batch_search
        ]

    @property
    def variants(self) -> tuple[VariantSettings, ...]:
        """What the session was requested with; empty if it has modes with the same settings."""
        return next((record.session.variants for record in self.records[::-1] if record.session is not None), ())

    @property
    def arms(self) -> bool:
        """Whether the session compares modes with themselves."""
        return any(record.session is not None and record.session.arm is not None for record in self.records)


def where_kept(name: str, place: Place, records: Iterable[Record], machine: Machine) -> Place:
    """Return this machine as the instance under which it measured the session of that name, or the latest; `place`
    without one. Sessions of other software count only if there is none of this software. Raises UsageError for several.
    """
    here, named = place.here or Here(), Filter(session=None if name == LATEST else name).of(records)
    ours = [one for one in named if one.session is not None and same_machine(one.machine, here.machine)]
    keys = dict.fromkeys(one.instance for one in ours)
    places = {key: place if key == place.instance.key else moved(place, machine, key) for key in keys}
    ours = [one for one in ours if places[one.instance] is not None]
    fitting = [one for one in ours if not here.unlike(one)] or ours
    if name == LATEST and fitting:
        latest = session(max(fitting, key=lambda one: one.created_utc))
        fitting = [one for one in fitting if session(one) == latest]
    found = sorted({one.instance for one in fitting})
    if len(found) > 1:
        what = f"session {name!r} of this machine is kept in {place.results_dir} under {' and '.join(found)}"
        raise UsageError(what, f"Say which with --instance, as in --instance {found[0]}")
    return (places[found[0]] if found else None) or place


def find_session(name: str, place: Place, records: Iterable[Record]) -> Kept:
    """Return the session of that name, or the latest. records: of the place's instance, oldest first. Raises UsageError
    without a latest, and for a session of another machine, software, commit of fp8bench, or other variables.
    """
    ours, here = checkout(*git_state()), place.here or Here(one=False)

    def unlike(record: Record) -> list[str]:
        theirs = checkout_of(record.environment)
        other = None not in (ours, theirs) and ours != theirs
        return here.unlike(record) + ([f"fp8bench at commit {theirs} (here {ours})"] if other else [])

    wanted = Filter(session=None if name == LATEST else name)
    sessions = latest_first(wanted.of(record for record in records if record.session is not None))
    for of_session in sessions:
        if fitting := [record for record in of_session if not unlike(record)]:
            return Kept(session(fitting[-1]), fitting)
    if sessions:
        last = sessions[0][-1]
        why = f"since it was measured with another {', '.join(unlike(last))}"
        remedy = f"Resume it where it was measured, or {OTHER_SESSION}"
        raise UsageError(f"session {session(last)!r} cannot be resumed here, {why}", remedy)
    if name == LATEST:
        what = f"no session of {place.instance.key!r} is kept in {place.results_dir}, so none can be resumed"
        raise UsageError(what, "Omit --session, or give the folder with --results-dir")
    return Kept(name)


def settings_of(kept: Kept, request: RunRequest, elastic: bool) -> dict[str, Any]:
    """Return the session's settings that the request leaves open, by the request's names. elastic: torchrun decides how
    many processes there are. Raises UsageError where records or variants leave a setting undecided.
    """
    if not kept.configs:
        return {}
    given, variants, found = request.model_fields_set, kept.variants, dict[str, Any]()
    own = owned(variants)
    overridden = ", ".join(flag_of(name) for name in sorted(given & {"mode", *own}))
    if variants and not request.variants:
        if overridden:
            what = f"session {kept.session_id!r} has variants with settings of their own, not those of {overridden}"
            raise UsageError(what, f"Omit {overridden} to resume it, or {OTHER_SESSION}")
        found["variants"] = variants
    for name, of_config in SETTINGS.items():
        values = dict.fromkeys(getattr(config, of_config) for config in kept.configs)
        if name in given or name in own or (elastic and name == "gpus"):
            continue
        if name == "batch_size" and kept.searches:
            values = {AUTO: None}
        if len(values) > 1:
            have = " and ".join(sorted(map(str, values)))
            what = f"session {kept.session_id!r} has no {name} of its own: its records have {have}"
            raise UsageError(what, f"Say which with {flag_of(name)}")
        found[name] = next(iter(values))
    # Older records do not contain what was requested.
    of_records = [mode for record in kept.records if record.session is not None for mode in record.session.modes]
    modes = list(dict.fromkeys([*of_records, *requested_modes(kept.configs)]))
    last = kept.records[-1].session
    others = {
        # None: this session has none.
        "mode": None if variants or request.variants else tuple(dict.fromkeys(mode.mode_label for mode in modes)),
        "te_switch": None if variants else words_of(modes),
        "aa": kept.arms or None,
        **{name: getattr(last, name) for name in ("rounds", "precision", "max_rounds")},
    }
    return found | {name: value for name, value in others.items() if name not in given and value is not None}


def refuse_unlike(kept: Kept, request: RunRequest, configs: Sequence[RunConfig]) -> None:
    """Raise UsageError that names each setting in which the configurations to be run differ from the session's."""
    if not kept.configs:
        return
    before, unlike, searched = kept.variants, dict[str, str](), {config for config, *_ in kept.searches}
    if before or request.variants:
        _refuse_changed(kept.session_id, before, request.variants)
    # Every variant has to be there again, and every mode has to be like those that were measured.
    each, others = (kept.configs, configs) if before else (configs, kept.configs)
    for config in dict.fromkeys(each):
        of_mode = [one for one in others if before and one.mode_label == config.mode_label]
        free = set() if before else {"mode", "recipe", "te_switches", "fp8_layer_names"}
        if config in searched or (searched and not before):
            free.add("batch_size")
        names = [name for name in RunConfig.model_fields if name not in free]
        differing = [
            {name: getattr(one, name) for name in names if getattr(one, name) != getattr(config, name)}
            for one in of_mode or others
        ]
        for name, value in min(differing, key=len).items():
            then, now = (getattr(config, name), value)[:: 1 if before else -1]
            unlike.setdefault(REQUESTED_AS.get(name, name), f"{REQUESTED_AS.get(name, name)} {then} (now {now})")
    if request.aa != kept.arms:
        unlike["aa"] = f"aa {str(kept.arms).lower()} (now {str(request.aa).lower()})"
    if unlike:
        flags, restore = ", ".join(map(flag_of, unlike)), ", or restore the file," if before else ""
        # Sizes are in the workload's name.
        flags += " and --size" if "," in unlike.get("workload", "") else ""
        remedy = f"Omit {flags}{restore} to resume it with its own settings, or {OTHER_SESSION}"
        raise UsageError(f"session {kept.session_id!r} was measured with {', '.join(unlike.values())}", remedy)


def _refuse_changed(session_id: str, kept: Sequence[VariantSettings], now: Sequence[VariantSettings]) -> None:
    """Raise UsageError that names what changed between two lists of variants, except their order."""
    if not kept:
        what = f"session {session_id!r} was measured without variants"
        raise UsageError(what, f"Omit --config to resume it, or {OTHER_SESSION}")

    def described(one: VariantSettings) -> str:
        own = ", ".join(setting_in_words(name, value) for name, value in one.items() if name != "mode")
        return f"{one['mode']} ({own})" if own else str(one["mode"])

    changes = [f"{described(one)} is no longer there" for one in kept if one not in now]
    changes += [f"{described(one)} is new" for one in now if one not in kept]
    if changes:
        remedy = f"Restore the file, or omit --config to resume the session with its own variants, or {OTHER_SESSION}"
        raise UsageError(f"session {session_id!r} was measured with other variants: {'; '.join(changes)}", remedy)


@cache
def at_any_size(config: RunConfig) -> RunConfig:
    """Return what two configurations share if only their batch size differs. A sweep compares all pairs at a turn."""
    return config.model_copy(update={"batch_size": 1})


def sizes_found(
    kept: Kept, configs: Sequence[RunConfig], to_size: Sequence[RunConfig]
) -> tuple[list[RunConfig], dict[RunConfig, BatchSearch]]:
    """Return the configurations, those of `to_size` with the size that the session found, and the searches for it."""
    found = {at_any_size(config): (config, search) for config, search, ok in kept.searches if ok}
    known = {config: found[at_any_size(config)] for config in to_size if at_any_size(config) in found}
    return [known[one][0] if one in known else one for one in configs], dict(known.values())


def requested_modes(configs: Iterable[RunConfig]) -> tuple[RequestedMode, ...]:
    """Return the modes of the configurations, each once, in the form in which a record's `Session` has them."""
    return tuple(dict.fromkeys(made_of(RequestedMode, config) for config in configs))


def examined(configs: Sequence[RunConfig], program: Sequence[str] = EXAMINES, always: bool = False) -> Answer | None:
    """Return what was found out about the model of these configurations; None if the workload's name says it all,
    unless `always`. It is built in a separate process, because the launcher imports no torch. Raises ModeUnavailable if
    no mode can be proved with it, UsageError if no model has the sizes in the name, and RunFailed on a failure.
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
