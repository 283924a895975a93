"""Where something is measured, of whatever kind: which instance of the catalogue this machine is, by its product name
and its GPUs, and what it cannot be called; and the folder of results.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import Here, software_here, this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema.errors import ModeUnavailable, UsageError, nearest
from fp8bench.schema.instance import Catalog, Instance, Price

CPU_INSTANCE = "cpu"
CUSTOM = "custom-"
"""Begins the key of an instance that is named after its GPUs, which other machines may get too."""

AUTO = "auto"


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


def register(place: Place, price: float | None, today: date, log: Callable[[str], None]) -> None:
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


def identify(machine: Machine, catalog: Catalog) -> Instance:
    """The catalogue's instance by its product name, else one named after its GPUs (`custom-2x-nvidia-h200`, `cpu`)."""
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
    """Whether `identify` made its name up, which two different machines may then have."""
    return instance.key == CPU_INSTANCE or instance.key.startswith(CUSTOM)


def claim(instance: Instance, machine: Machine, catalog: Catalog) -> None:
    """Check that this machine can be the instance that the user names.

    Raises ModeUnavailable where it has no GPU at all, UsageError where it has another one.
    """
    if instance.gpu_count == 0:
        if machine.has_gpu:
            raise UsageError(
                f"instance {instance.key!r} has no GPU, and this machine has {machine.gpus[0]}",
                "Use --instance auto, or hide the GPUs with CUDA_VISIBLE_DEVICES= to measure the CPU",
            )
        return
    if not machine.has_gpu:
        raise ModeUnavailable(
            f"instance {instance.key!r} has {instance.gpu_count} x {instance.gpu}, and this machine shows no GPU",
            "Run it there, check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use --instance auto to measure this CPU",
        )
    if machine.is_sliced:
        raise UsageError(
            f"instance {instance.key!r} has {instance.gpu}, and this machine shows slices of it (MIG)",
            "Use --instance auto, or turn slicing off: `sudo nvidia-smi -mig 0`",
        )
    found = catalog.gpu_by_product(machine.gpus[0])
    if found is not None and instance.gpu is not None and found.name != instance.gpu:
        raise UsageError(
            f"instance {instance.key!r} has {instance.gpu}, and this machine has {found.name}",
            "Give this machine's instance, or use --instance auto",
        )
    if len(machine.gpus) > instance.gpu_count:
        gpus = f"{instance.gpu_count} {'GPU' if instance.gpu_count == 1 else 'GPUs'}"
        raise UsageError(
            f"instance {instance.key!r} has {gpus}, and this machine shows {len(machine.gpus)}",
            "Give this machine's instance, or show fewer with CUDA_VISIBLE_DEVICES",
        )


def instance_called(name: str, machine: Machine, catalog: Catalog, has_price: bool = False) -> Instance:
    """What `--instance` names; for `auto`, as `identify` finds. has_price: the user gives its price, so that an unknown
    name is that of this machine. Raises as catalogs.find, require_read and claim do.
    """
    catalogs.require_read(catalog, [name])
    if name == AUTO:
        instance = identify(machine, catalog)
        catalogs.require_read(catalog, [instance.key])
        return instance
    try:
        instance = catalogs.find(catalog, name, more=[AUTO])
    except UsageError as error:
        if has_price:
            return named(name, machine, catalog)
        remedy = "give its --price to `fp8bench run`, which makes an instance of this machine"
        raise UsageError(error.what, f"{error.remedy}, or {remedy}") from error
    catalogs.require_read(catalog, [instance.key])
    claim(instance, machine, catalog)
    return instance


def named(name: str, machine: Machine, catalog: Catalog) -> Instance:
    """This machine as an instance of the user's own. Raises UsageError for what cannot be a folder's name."""
    found = identify(machine, catalog.model_copy(update={"instances": {}}))
    try:
        # Not by the product's name, which other machines have too.
        return Instance.model_validate({**found.model_dump(), "key": name, "instance_type": None})
    except ValidationError as error:
        raise UsageError(
            f"--instance {name!r} cannot be the name of an instance",
            "Use lower-case letters, digits, '.', '_' and '-', and begin with a letter or a digit",
        ) from error
