"""The GPUs of this machine, from NVML: which exist, which of them a run would see, which are sliced (MIG), and what the
driver reports of itself and of each that a run would see; of these facts none is a UUID or a serial number. NVML
ignores CUDA_VISIBLE_DEVICES, so what it leaves is computed from UUIDs by the rule of the CUDA Programming Guide and,
for slices, of the MIG User Guide. What neither defines (a GPU named twice, and both kinds of name in one list) is
handled as torch.cuda does (github.com/pytorch/pytorch/pull/92315).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8bench.machine import nvml
from fp8bench.machine.nvml import pynvml, query
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import Frozen, made_of, text_if_any

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
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        mode = query(pynvml.nvmlDeviceGetMigMode, handle)
        uuid = str(query(pynvml.nvmlDeviceGetUUID, handle) or "")
        name = str(query(pynvml.nvmlDeviceGetName, handle) or "GPU of unknown name")
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


class GpuFacts(Frozen):
    """index: NVML's. Memory in use is of all processes, without what the driver reserves."""

    index: int
    name: str
    capability: tuple[int, int] | None = None
    memory_used_bytes: int | None = None
    processes: int | None = None
    utilization_percent: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    uncorrected_errors: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle_reasons: int | None = None
    temperature_c: int | None = None
    slowdown_temperature_c: int | None = None
    application_clock_mhz: int | None = None
    default_application_clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    mig: bool | None = None
    nvlinks: int | None = None
    compute_mode: int | None = None


class DriverFacts(Frozen):
    """error: NVML's, if it should answer. hidden: GPUs that CUDA_VISIBLE_DEVICES hides. on_the_bus: NVIDIA's GPUs."""

    version: str | None = None
    cuda: tuple[int, ...] | None = None
    gpus: tuple[GpuFacts, ...] = ()
    hidden: int = 0
    on_the_bus: int = 0
    error: str | None = None

    @property
    def why_no_gpu(self) -> str | None:
        """Why no GPU can be examined, in a few words; None if one can be."""
        if self.gpus:
            return None
        if self.error is not None:
            return "the driver does not answer"
        return "CUDA_VISIBLE_DEVICES hides every GPU" if self.hidden else "no GPU here"


def look(environ: Mapping[str, str], pci: Path = Path("/sys/bus/pci/devices")) -> DriverFacts:
    """Return what the driver reports. environ: CUDA_VISIBLE_DEVICES applies. pci: the folder of the bus's devices."""
    devices = ((text_if_any(at / "vendor").strip(), text_if_any(at / "class").strip()) for at in pci.glob("*"))
    # NVIDIA's display and 3D controllers.
    on_the_bus = sum(vendor == "0x10de" and of.startswith("0x03") for vendor, of in devices)
    try:
        with nvml.opened():
            gpus = listed()
            seen, cuda = visible(gpus, environ), query(pynvml.nvmlSystemGetCudaDriverVersion_v2)
            return DriverFacts(
                version=query(pynvml.nvmlSystemGetDriverVersion),
                # NVML encodes 12.4 as 12040.
                cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
                gpus=tuple(map(_facts, seen)),
                hidden=len(gpus) - len(seen),
                on_the_bus=on_the_bus,
            )
    except pynvml.NVMLError as error:
        # A driver is not missed if there is no GPU, or if none is wanted.
        missed = not isinstance(error, nvml.NO_DRIVER) or (on_the_bus and not hides_all(environ.get(VISIBLE)))
        return DriverFacts(on_the_bus=on_the_bus, error=str(error) if missed else None)


def _facts(gpu: Gpu) -> GpuFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)

    def of(function: Callable[..., Any], *arguments: Any, read: Callable[[Any], Any] = lambda told: told) -> Any:
        told = query(function, handle, *arguments)
        return None if told is None else read(told)

    def watts(milliwatts: int) -> float:
        return milliwatts * 1e-3

    ecc, ecc_pending = of(pynvml.nvmlDeviceGetEccMode) or (None, None)
    _, _, remap_pending, remap_failed = of(pynvml.nvmlDeviceGetRemappedRows) or (None, None, None, None)
    states = [of(pynvml.nvmlDeviceGetNvLinkState, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    links = [bool(state) for state in states if state is not None]
    uncorrected, sm_clock = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_CLOCK_SM
    slowdown = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    return made_of(
        GpuFacts,
        gpu,
        capability=of(pynvml.nvmlDeviceGetCudaComputeCapability),
        memory_used_bytes=of(nvml.memory, read=lambda memory: int(memory.used)),
        processes=of(nvml.process_bytes, read=len),
        utilization_percent=of(pynvml.nvmlDeviceGetUtilizationRates, read=lambda rates: int(rates.gpu)),
        power_limit_w=of(pynvml.nvmlDeviceGetEnforcedPowerLimit, read=watts),
        power_default_w=of(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, read=watts),
        ecc=ecc,
        ecc_pending=ecc_pending,
        uncorrected_errors=of(pynvml.nvmlDeviceGetTotalEccErrors, uncorrected, pynvml.NVML_VOLATILE_ECC),
        remap_pending=remap_pending,
        remap_failed=remap_failed,
        throttle_reasons=of(nvml.throttle_reasons),
        temperature_c=of(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        slowdown_temperature_c=of(pynvml.nvmlDeviceGetTemperatureThreshold, slowdown),
        application_clock_mhz=of(pynvml.nvmlDeviceGetApplicationsClock, sm_clock),
        default_application_clock_mhz=of(pynvml.nvmlDeviceGetDefaultApplicationsClock, sm_clock),
        max_clock_mhz=of(pynvml.nvmlDeviceGetMaxClockInfo, sm_clock),
        nvlinks=sum(links) if links else None,
        compute_mode=of(pynvml.nvmlDeviceGetComputeMode),
    )
