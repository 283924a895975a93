"""The GPUs of this machine, from NVML: which exist, which of them a run would see, and which are sliced (MIG). NVML
ignores CUDA_VISIBLE_DEVICES, so what it leaves is computed from UUIDs by the rule of the CUDA Programming Guide and,
for slices, of the MIG User Guide. What neither defines (a GPU named twice, and both kinds of name in one list) is
handled as torch.cuda does (github.com/pytorch/pytorch/pull/92315).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8bench.machine import nvml
from fp8bench.machine.nvml import pynvml
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import text_if_any

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The folder in which a driver creates a file for each GPU: `nvidia0`.
DEVICES = Path("/dev")
DMI_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
# Suffix of the name of a GPU of which a process sees a slice: it has another price, and is compared as another GPU.
SLICED = " (MIG)"
GPU, SLICE = "GPU-", "MIG-"


@dataclass(frozen=True)
class Gpu:
    """index: as in NVML and nvidia-smi. uuid: empty if unknown. mig: whether it is sliced; None if unknown."""

    index: int
    uuid: str
    name: str
    mig: bool | None = None


@dataclass(frozen=True)
class Machine:
    """gpus: name per visible GPU, in order. product_name: the firmware's (a cloud's instance type)."""

    gpus: tuple[str, ...]
    product_name: str | None
    cpu_count: int

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpus)

    @property
    def is_sliced(self) -> bool:
        return any(name.endswith(SLICED) for name in self.gpus)


def this_machine(environ: Mapping[str, str]) -> Machine:
    """Return this machine, with what CUDA_VISIBLE_DEVICES leaves. Raises ModeUnavailable if no GPUs are listed."""
    try:
        gpus = () if hides_all(environ.get(VISIBLE)) else visible(gpus_here(), environ)
    except pynvml.NVMLError as error:
        raise ModeUnavailable(
            f"NVIDIA's driver does not list the GPUs of this machine: {error}",
            f"Check the driver with `nvidia-smi` and `fp8bench doctor`, or set {VISIBLE}= to use the CPU",
        ) from error
    return Machine(
        gpus=tuple(gpu.name + SLICED if gpu.mig else gpu.name for gpu in gpus),
        product_name=text_if_any(DMI_PRODUCT_NAME).strip() or None,
        cpu_count=len(os.sched_getaffinity(0)),
    )


def gpus_here() -> tuple[Gpu, ...]:
    """Return every GPU, also hidden ones. Raises pynvml.NVMLError if a driver, or a machine with a GPU, lists none."""
    try:
        with nvml.opened():
            return listed()
    except nvml.NO_DRIVER:
        if any(DEVICES.glob("nvidia[0-9]*")):
            raise
        return ()


def listed() -> tuple[Gpu, ...]:
    """As `gpus_here`, while NVML is open."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        mode = nvml.query(pynvml.nvmlDeviceGetMigMode, handle)
        uuid = str(nvml.query(pynvml.nvmlDeviceGetUUID, handle) or "")
        name = str(nvml.query(pynvml.nvmlDeviceGetName, handle) or "GPU of unknown name")
        found.append(Gpu(index, uuid, name, None if mode is None else bool(mode[0])))
    return tuple(found)


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in CUDA's order. Its entries are indices, or unique beginnings
    of UUIDs; the first decides which. The list ends at the first that is neither a GPU nor of that kind; a GPU that is
    named twice hides all. A slice (`MIG-...`) stands for its GPU; every GPU is left if that is unknown.
    """
    setting = environ.get(VISIBLE)
    if setting is None:
        return tuple(gpus)
    entries = [entry.strip() for entry in setting.split(",")]
    if entries[0].startswith(SLICE):
        # A process sees one slice, whatever else is named. Drivers before R470 name it by its GPU
        # (`MIG-GPU-<UUID>/<GPU instance>/<compute instance>`), later ones by a UUID that does not identify the GPU.
        name = entries[0].removeprefix(SLICE).partition("/")[0]
        if not name.startswith(GPU):
            return tuple(gpus)
        entries = [name]
    by_uuid = entries[0].startswith(GPU)
    chosen: list[Gpu] = []
    for entry in entries:
        found = [gpu for gpu in gpus if entry == str(gpu.index) or (by_uuid and gpu.uuid.startswith(entry))]
        if len(found) != 1 or entry.startswith(GPU) != by_uuid:
            break
        if found[0] in chosen:
            return ()
        chosen += found
    return tuple(chosen)


def hides_all(setting: str | None) -> bool:
    """Return whether the setting hides all GPUs of any machine: its first entry names none (empty, -1, NoDevFiles)."""
    if setting is None:
        return False
    first = setting.split(",")[0].strip()
    return not (first.startswith((GPU, SLICE)) or (first.isascii() and first.isdecimal()))
