"""Where something is measured, of whatever kind: the machine, the instance that it is, and the folder of results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from fp8bench.launch.instance import instance_called, is_made_up
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import Here, software_here, this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema.errors import ModeUnavailable, UsageError, nearest
from fp8bench.schema.instance import Instance, Price


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something is measured, and where its records are kept. here: this machine; None: unknown."""

    instance: Instance
    in_catalog: bool
    results_dir: Path
    here: Here | None = None


def place_on(
    machine: Machine, name: str, results_dir: Path, label: str | None, one: bool = True, has_price: bool = False
) -> Place:
    """The instance that is called so on this machine. label: of the machine. one: False where there are several nodes.
    has_price: the user gives its price, which makes an instance of an unknown name.

    Writes nothing. Raises UsageError and ModeUnavailable.
    """
    catalog = catalogs.load_beside(instances.files(results_dir))
    instance = instance_called(name, machine, catalog, has_price)
    here = Here(this_machines_identity(label), software_here(machine.has_gpu), one)
    return Place(instance=instance, in_catalog=instance.key in catalog.instances, results_dir=results_dir, here=here)


def moved(place: Place, machine: Machine, key: str) -> Place | None:
    """The same place as another instance that is known here; None where this machine cannot be it. Raises UsageError
    where what is known of it cannot be read.
    """
    catalog = catalogs.load_beside(instances.files(place.results_dir))
    catalogs.require_read(catalog, [key])
    if key not in catalog.instances:
        return None
    try:
        instance = instance_called(key, machine, catalog)
    except (UsageError, ModeUnavailable):
        return None
    return replace(place, instance=instance, in_catalog=True)


def settle(place: Place, price: float | None, today: date, log: Callable[[str], None]) -> None:
    """Make sure that records can be kept, and keep what is known of the instance beside them.

    price: USD per hour as the user gave it, for this machine alone where fp8bench made the instance up, which another
    may be called too. log: takes a line where a file cannot be locked. Raises UsageError where the folder cannot be
    written.
    """
    results.require_writable(place.results_dir)
    if not place.in_catalog and not is_made_up(place.instance):
        log(_made(place.instance, place.results_dir))
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


def _made(instance: Instance, results_dir: Path) -> str:
    """That an instance is new, since its name may be a slip."""
    of = f"{instance.gpu_count} x {instance.gpu or 'a GPU of no known figures'}" if instance.gpu_count else "its CPU"
    near = nearest(instance.key, catalogs.load_beside(instances.files(results_dir)).instances)
    meant = f"; the nearest known name is {near[0]!r}" if near else ""
    return f"instance {instance.key!r} is new, and is made of this machine: {of}{meant}"
