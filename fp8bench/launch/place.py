"""Decides where a measurement of any kind takes place: which instance of the catalogue this machine is, by its product
name and its GPUs, which instances it cannot be, and the folder of results.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import Here, settings_here, software_here, this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema.errors import ModeUnavailable, UsageError, nearest
from fp8bench.schema.instance import Catalog, Instance, Price
from fp8bench.schema.machine import MachineIdentity

CPU_INSTANCE, CUSTOM = "cpu", "custom-"
"""What `identify` calls a machine that is no instance of the catalogue: its CPU, or what its key begins with."""

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something is measured, and where its records are kept. here: this machine; None if unknown."""

    instance: Instance
    results_dir: Path
    here: Here | None = None

    @property
    def machine(self) -> MachineIdentity | None:
        return self.here.machine if self.here else None


def place_on(machine: Machine, name: str, results_dir: Path, label: str | None, has_price: bool = False) -> Place:
    """Return the place that `name` stands for on this machine (see `instance_called`). label: of the machine."""
    instance = instance_called(name, machine, catalogs.load_beside(instances.files(results_dir)), has_price)
    here = Here(this_machines_identity(label), {**software_here(machine.has_gpu), **settings_here()})
    return Place(instance=instance, results_dir=results_dir, here=here)


def elsewhere(name: str, machine: Machine, results_dir: Path) -> Machine | None:
    """Return the machine that this instance is, to plan a run there; None if it is this one, or unknown."""
    catalog = catalogs.load_beside(instances.files(results_dir))
    try:
        instance = catalogs.find(catalog, name)
        claim(instance, machine, catalog)
    except ModeUnavailable:
        gpu = catalog.gpus.get(instance.gpu or "")
        if gpu is not None and gpu.product_names:
            return Machine(gpu.product_names[:1] * instance.gpu_count, None, instance.vcpus or 1)
    except UsageError:
        # Unknown, or other GPUs than the ones here, between which the user has to decide.
        pass
    return None


def moved(place: Place, machine: Machine, key: str) -> Place | None:
    """Return the place as another instance that is known here; None if this machine cannot be it. Raises UsageError."""
    catalog = catalogs.load_beside(instances.files(place.results_dir))
    catalogs.require_read(catalog, [key])
    try:
        return replace(place, instance=instance_called(key, machine, catalog))
    except (UsageError, ModeUnavailable):
        return None


def register(place: Place, price: float | None, today: date, log: Callable[[str], None]) -> None:
    """Make sure that records can be kept, and keep what is known of the instance. price: USD per hour; of an instance
    whose name fp8bench made up, it is for this machine alone. Raises UsageError if the folder cannot be written.
    """
    results.require_writable(place.results_dir)
    known = catalogs.load_beside(instances.files(place.results_dir)).instances
    if place.instance.key not in known and not is_made_up(place.instance):
        # Its name may be a typing mistake.
        near = nearest(place.instance.key, known)
        meant = f"; the nearest known name is {near[0]!r}" if near else ""
        log(f"instance {place.instance.key!r} is new, and is made of this machine{meant}")
    given = None
    if price is not None:
        machine = place.machine.id if place.machine and is_made_up(place.instance) else None
        source = "given with --price"
        given = Price(usd_per_hour=price, purchase="on_demand", as_of=today, source=source, machine=machine)
    instances.keep(place.instance, given, place.instance.key in known, place.results_dir, log)


def identify(machine: Machine, catalog: Catalog) -> Instance:
    """Return the catalogued instance of this product, else one named by its GPUs (`custom-2x-nvidia-h200`, `cpu`)."""
    if not machine.has_gpu:
        return Instance(key=CPU_INSTANCE, gpu=None, gpu_count=0, vcpus=machine.cpu_count)
    for instance in catalog.instances.values():
        if machine.product_name and machine.product_name == instance.instance_type and not machine.is_sliced:
            return instance
    gpu = catalog.gpu_by_product(machine.gpus[0])
    slug = re.sub(r"[^a-z0-9]+", "-", machine.gpus[0].lower()).strip("-")
    return Instance(
        key=f"{CUSTOM}{len(machine.gpus)}x-{slug}",
        instance_type=machine.product_name,
        gpu=gpu.name if gpu else None,
        gpu_count=len(machine.gpus),
    )


def is_made_up(instance: Instance) -> bool:
    """Return whether `identify` made up the instance's name, which two different machines may then share."""
    return instance.key == CPU_INSTANCE or instance.key.startswith(CUSTOM)


def claim(instance: Instance, machine: Machine, catalog: Catalog) -> None:
    """Raise ModeUnavailable if this machine has no GPU and the instance has, UsageError if it has others or more."""
    there, named = len(machine.gpus), instance.gpu_count
    known = catalog.gpu_by_product(machine.gpus[0]) if there else None
    another = known is not None and instance.gpu is not None and known.name != instance.gpu
    if not (another or there > named or (named and (machine.is_sliced or not there))):
        return
    has = f"{named} x {instance.gpu}" if named else "no GPU"
    remedy = (
        "Give this machine's instance or --instance auto; CUDA_VISIBLE_DEVICES (see `nvidia-smi`) sets what it shows"
    )
    shows = f"{there} x {known.name if known else machine.gpus[0]}" if there else "no GPU"
    if machine.is_sliced and named:
        shows, remedy = "slices of one (MIG)", "Use --instance auto, or turn slicing off: `sudo nvidia-smi -mig 0`"
    error = UsageError if there else ModeUnavailable
    raise error(f"instance {instance.key!r} has {has}, and this machine shows {shows}", remedy)


def instance_called(name: str, machine: Machine, catalog: Catalog, has_price: bool = False) -> Instance:
    """Return the instance that `--instance` names; for `auto`, the one that `identify` finds. has_price: the user gives
    a price, so that an unknown name becomes this machine's. Raises as catalogs.find, require_read and claim do.
    """
    catalogs.require_read(catalog, [name])
    try:
        instance = identify(machine, catalog) if name == AUTO else catalogs.find(catalog, name, more=[AUTO])
    except UsageError as error:
        if not has_price:
            remedy = "give its --price to `fp8bench run`, which makes an instance of this machine"
            raise UsageError(error.what, f"{error.remedy}, or {remedy}") from error
        found = identify(machine, catalog.model_copy(update={"instances": {}}))
        try:
            # Without the product's name, which other machines have too.
            return Instance.model_validate({**found.model_dump(), "key": name, "instance_type": None})
        except ValidationError as invalid:
            remedy = "Use lower-case letters, digits, '.', '_' and '-', and begin with a letter or a digit"
            raise UsageError(f"--instance {name!r} cannot be the name of an instance", remedy) from invalid
    catalogs.require_read(catalog, [instance.key])
    if name != AUTO:
        claim(instance, machine, catalog)
    return instance
