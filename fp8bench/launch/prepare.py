"""Everything that must be settled before the first worker starts, so that a wrong word fails in a second and not in
an hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from fp8bench.launch.machine import instance_called, this_machine
from fp8bench.launch.plan import Elastic, elastic_from, entries, plan, stop
from fp8bench.launch.rounds import Entry, Stop
from fp8bench.pricing import catalog as catalogs
from fp8bench.schema.instance import Instance, Price
from fp8bench.schema.request import RunRequest
from fp8bench.store import instances, results


@dataclass(frozen=True)
class Prepared:
    """What will run, where it is kept, and as part of what."""

    entries: list[Entry]
    stop: Stop
    instance: Instance
    in_catalog: bool
    elastic: Elastic | None
    allow_busy: bool
    results_dir: Path
    session: str | None = None

    @property
    def keeps_records(self) -> bool:
        """Whether this process writes and prints: all but the ranks above 0 under torchrun."""
        return self.elastic is None or self.elastic.rank == 0


def prepare(request: RunRequest, environ: Mapping[str, str]) -> Prepared:
    """Look at the machine and plan. Writes nothing. Raises UsageError and ModeUnavailable."""
    machine = this_machine(environ)
    catalog = catalogs.load(instances.files(request.results_dir))
    instance = instance_called(request.instance, machine, catalog)
    elastic = elastic_from(environ)
    return Prepared(
        entries=entries(request, plan(request, machine, elastic)),
        stop=stop(request, machine, elastic),
        instance=instance,
        in_catalog=instance.key in catalog.instances,
        elastic=elastic,
        allow_busy=request.allow_busy,
        session=request.session,
        results_dir=request.results_dir,
    )


def settle(prepared: Prepared, price: float | None, today: date) -> None:
    """Make sure that records can be kept, and keep what is known of the instance beside them.

    price: USD per hour as the user gave it. Raises UsageError where the folder cannot be written.
    """
    results.require_writable(prepared.results_dir)
    given = None
    if price is not None:
        given = Price(usd_per_hour=price, purchase="on_demand", as_of=today, source="given with --price")
    instances.keep(prepared.instance, given, prepared.in_catalog, prepared.results_dir)
