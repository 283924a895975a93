"""This machine, without torch: its GPUs by NVML, its product name by DMI, and which catalogue instance it is."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from fp8bench.pricing import catalog as catalogs
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.files import text_if_any
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.visible_gpus import visible_gpus

DMI_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
CPU_INSTANCE = "cpu"
CUSTOM = "custom-"
"""Begins the key of an instance that is made up from its GPUs, and that another machine would get too."""

AUTO = "auto"
SLICED = " (MIG)"
"""After the name of a GPU of which a process sees a slice: another GPU to price, and to hold others against."""


@dataclass(frozen=True)
class Machine:
    """gpus: product name of each visible GPU, in order. product_name: as the firmware says (a cloud's instance
    type).
    """

    gpus: tuple[str, ...]
    product_name: str | None
    cpu_count: int

    @property
    def has_gpu(self) -> bool:
        """Whether workers train on CUDA here."""
        return bool(self.gpus)

    @property
    def is_sliced(self) -> bool:
        """Whether workers would see slices of GPUs."""
        return any(name.endswith(SLICED) for name in self.gpus)


def this_machine(environ: Mapping[str, str]) -> Machine:
    """Look. environ: CUDA_VISIBLE_DEVICES is heeded."""
    product = text_if_any(DMI_PRODUCT_NAME).strip() or None
    gpus = nvml_gpus()
    visible = visible_gpus([uuid for uuid, _ in gpus], environ.get("CUDA_VISIBLE_DEVICES"))
    names = tuple(gpus[index][1] for index in visible)
    return Machine(gpus=names, product_name=product, cpu_count=len(os.sched_getaffinity(0)))


def nvml_gpus() -> list[tuple[str, str]]:
    """(uuid, product name) of every GPU that the driver knows, the name with SLICED where MIG is on; none without a
    driver.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [(str(pynvml.nvmlDeviceGetUUID(handle)), _name(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def _name(handle: Any) -> str:
    name = str(pynvml.nvmlDeviceGetName(handle))
    try:
        sliced = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:
        # Most GPUs cannot be sliced.
        sliced = False
    return name + SLICED if sliced else name


def identify(machine: Machine, catalog: Catalog) -> Instance:
    """The catalogue's instance by its product name, else one made up from the GPUs (`custom-2x-nvidia-h200`), or
    `cpu`.
    """
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
    """Whether `identify` made the instance up, so that two unlike machines may have its name."""
    return instance.key == CPU_INSTANCE or instance.key.startswith(CUSTOM)


def claim(instance: Instance, machine: Machine, catalog: Catalog) -> None:
    """Check that this machine can be what the user calls it.

    Raises ModeUnavailable where it has no GPU at all, UsageError where it has another one.
    """
    if instance.gpu_count == 0:
        if machine.has_gpu:
            raise UsageError(
                f"instance {instance.key!r} has no GPU, and this machine has {machine.gpus[0]}",
                "Say --instance auto, or hide the GPUs with CUDA_VISIBLE_DEVICES= to measure the CPU",
            )
        return
    if not machine.has_gpu:
        raise ModeUnavailable(
            f"instance {instance.key!r} has {instance.gpu_count} x {instance.gpu}, and this machine shows no GPU",
            "Run it there, look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, or say --instance auto to measure this CPU",
        )
    if machine.is_sliced:
        raise UsageError(
            f"instance {instance.key!r} has {instance.gpu}, and this machine shows slices of it (MIG)",
            "Say --instance auto, or turn slicing off: `sudo nvidia-smi -mig 0`",
        )
    found = catalog.gpu_by_product(machine.gpus[0])
    if found is not None and instance.gpu is not None and found.name != instance.gpu:
        raise UsageError(
            f"instance {instance.key!r} has {instance.gpu}, and this machine has {found.name}",
            "Name the instance that this is, or say --instance auto",
        )
    if len(machine.gpus) > instance.gpu_count:
        gpus = f"{instance.gpu_count} {'GPU' if instance.gpu_count == 1 else 'GPUs'}"
        raise UsageError(
            f"instance {instance.key!r} has {gpus}, and this machine shows {len(machine.gpus)}",
            "Name the instance that this is, or show fewer with CUDA_VISIBLE_DEVICES",
        )


def instance_called(name: str, machine: Machine, catalog: Catalog) -> Instance:
    """What `--instance` names: `auto` is what this machine is found to be. Raises as catalogs.find, require_read and
    claim do.
    """
    catalogs.require_read(catalog, [name])
    instance = identify(machine, catalog) if name == AUTO else catalogs.find(catalog, name, more=[AUTO])
    catalogs.require_read(catalog, [instance.key])
    if name != AUTO:
        claim(instance, machine, catalog)
    return instance
