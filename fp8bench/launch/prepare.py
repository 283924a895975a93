"""What is checked before anything is measured, so that an invalid word fails in a second and not in an hour: for every
kind the machine, its instance and the folder of results; for a run its plan, and the session that it resumes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from fp8bench.config.request import RunRequest
from fp8bench.launch import resume
from fp8bench.launch.instance import instance_called, is_made_up
from fp8bench.launch.plan import Elastic, elastic_from, entries, plan, stop
from fp8bench.launch.rounds import Entry, Stop
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.machine.identity import Here, software_here, this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema.instance import Instance, Price


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something is measured, and where its records are kept. here: this machine; None: unknown."""

    instance: Instance
    in_catalog: bool
    results_dir: Path
    here: Here | None = None


def place_on(machine: Machine, name: str, results_dir: Path, label: str | None, one: bool = True) -> Place:
    """The instance that is called so on this machine. label: of the machine. one: False where there are several nodes.

    Writes nothing. Raises UsageError and ModeUnavailable.
    """
    catalog = catalogs.load_beside(instances.files(results_dir))
    instance = instance_called(name, machine, catalog)
    here = Here(this_machines_identity(label), software_here(machine.has_gpu), one)
    return Place(instance=instance, in_catalog=instance.key in catalog.instances, results_dir=results_dir, here=here)


@dataclass(frozen=True, kw_only=True)
class Prepared(Place):
    """A run: what is executed, and as part of which session; here: the machine that a resumed session must be of.
    resumed: settings that the session brought, by the request's names. timeout_s: of a phase; None: by the phase.
    """

    entries: list[Entry]
    stop: Stop
    elastic: Elastic | None
    allow_busy: bool
    session: str | None = None
    resumed: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None

    @property
    def keeps_records(self) -> bool:
        """Whether this process writes and prints: all but the ranks above 0 under torchrun."""
        return self.elastic is None or self.elastic.rank == 0


def prepare(request: RunRequest, environ: Mapping[str, str]) -> Prepared:
    """Look at the machine, at the session that is resumed, and plan. Writes nothing. Raises UsageError and
    ModeUnavailable.
    """
    machine = this_machine(environ)
    elastic = elastic_from(environ)
    one = elastic is None or elastic.nodes == 1
    place = place_on(machine, request.instance, request.results_dir, request.name, one)
    kept, resumed = None, {}
    # Several nodes need not see the same results, and all ranks need the same settings.
    if request.session is not None and one:
        kept = _kept(request.session, place)
        resumed = resume.settings_of(kept, request, elastic is not None)
        request = request.model_copy(update=resumed)
    configs = plan(request, machine, elastic)
    if kept is not None:
        resume.refuse_unlike(kept, configs, request.aa)
    return Prepared(
        **vars(place),
        entries=entries(request, configs),
        stop=stop(request, machine, elastic),
        elastic=elastic,
        allow_busy=request.allow_busy,
        session=kept.session_id if kept is not None else request.session,
        resumed=resumed,
        timeout_s=request.timeout_s,
    )


def _kept(name: str, place: Place) -> resume.Kept:
    records = [record for record, _ in results.read(place.results_dir, [place.instance.key])]
    return resume.find(name, records, place.here or Here(), f"of {place.instance.key!r} is kept in {place.results_dir}")


def settle(place: Place, price: float | None, today: date, log: Callable[[str], None]) -> None:
    """Make sure that records can be kept, and keep what is known of the instance beside them.

    price: USD per hour as the user gave it, for this machine alone where fp8bench made the instance up, which another
    may be called too. log: takes a line where a file cannot be locked. Raises UsageError where the folder cannot be
    written.
    """
    results.require_writable(place.results_dir)
    given = None
    if price is not None:
        machine = place.here.machine if place.here and is_made_up(place.instance) else None
        given = Price(
            usd_per_hour=price,
            purchase="on_demand",
            as_of=today,
            source="given with --price",
            machine=machine.id if machine else None,
        )
    instances.keep(place.instance, given, place.in_catalog, place.results_dir, log)
