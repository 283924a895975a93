"""Which catalogue instance this machine is, by its product name and its GPUs, and what it cannot be called."""

import re

from pydantic import ValidationError

from fp8bench.machine.gpus import Machine
from fp8bench.pricing import catalog as catalogs
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog, Instance

CPU_INSTANCE = "cpu"
CUSTOM = "custom-"
"""Begins the key of an instance that is named after its GPUs, which other machines may get too."""

AUTO = "auto"


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
