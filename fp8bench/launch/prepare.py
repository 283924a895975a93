"""Everything that must be settled before the first worker starts, so that a wrong word fails in a second and not in
an hour.
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
from fp8bench.machine.gpus import this_machine
from fp8bench.machine.identity import Here, software_here, this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema.instance import Instance, Price


@dataclass(frozen=True)
class Prepared:
    """What will run, where it is kept, and as part of what. here: this machine, which a session must be of to go on.
    resumed: settings that the session brought, by the request's names. timeout_s: of a phase; None: by the phase.
    """

    entries: list[Entry]
    stop: Stop
    instance: Instance
    in_catalog: bool
    elastic: Elastic | None
    allow_busy: bool
    results_dir: Path
    session: str | None = None
    here: Here | None = None
    resumed: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None

    @property
    def keeps_records(self) -> bool:
        """Whether this process writes and prints: all but the ranks above 0 under torchrun."""
        return self.elastic is None or self.elastic.rank == 0


def prepare(request: RunRequest, environ: Mapping[str, str]) -> Prepared:
    """Look at the machine, at the session that is to go on, and plan. Writes nothing. Raises UsageError and
    ModeUnavailable.
    """
    machine = this_machine(environ)
    catalog = catalogs.load_beside(instances.files(request.results_dir))
    instance = instance_called(request.instance, machine, catalog)
    elastic = elastic_from(environ)
    one = elastic is None or elastic.nodes == 1
    here = Here(this_machines_identity(request.name), software_here(machine.has_gpu), one)
    kept, resumed = None, {}
    # Several nodes need not see the same results, and all ranks need the same settings.
    if request.session is not None and one:
        kept = _kept(request.session, request.results_dir, instance.key, here)
        resumed = resume.settings_of(kept, request, elastic is not None)
        request = request.model_copy(update=resumed)
    configs = plan(request, machine, elastic)
    if kept is not None:
        resume.refuse_unlike(kept, configs, request.aa)
    return Prepared(
        entries=entries(request, configs),
        stop=stop(request, machine, elastic),
        instance=instance,
        in_catalog=instance.key in catalog.instances,
        elastic=elastic,
        allow_busy=request.allow_busy,
        session=kept.session_id if kept is not None else request.session,
        results_dir=request.results_dir,
        here=here,
        resumed=resumed,
        timeout_s=request.timeout_s,
    )


def _kept(name: str, results_dir: Path, instance: str, here: Here) -> resume.Kept:
    records = [record for record, _ in results.read(results_dir, [instance])]
    return resume.find(name, records, here, f"of {instance!r} is kept in {results_dir}")


def settle(prepared: Prepared, price: float | None, today: date, told: Callable[[str], None]) -> None:
    """Make sure that records can be kept, and keep what is known of the instance beside them.

    price: USD per hour as the user gave it, for this machine alone where fp8bench made the instance up, which another
    may be called too. told: hears where a file cannot be locked. Raises UsageError where the folder cannot be written.
    """
    results.require_writable(prepared.results_dir)
    given = None
    if price is not None:
        machine = prepared.here.machine if prepared.here and is_made_up(prepared.instance) else None
        given = Price(
            usd_per_hour=price,
            purchase="on_demand",
            as_of=today,
            source="given with --price",
            machine=machine.id if machine else None,
        )
    instances.keep(prepared.instance, given, prepared.in_catalog, prepared.results_dir, told)
