"""The GPUs of this machine, from NVML: which exist, which of them a run would see, which are sliced (MIG), and what the
driver reports of itself and of each that a run would see; of these facts none is a UUID or a serial number. NVML
ignores CUDA_VISIBLE_DEVICES, so what it leaves is computed from UUIDs by the rule of the CUDA Programming Guide and,
for slices, of the MIG User Guide. What neither defines (a GPU named twice, and both kinds of name in one list) is
handled as torch.cuda does (github.com/pytorch/pytorch/pull/92315).

At the end is what is asked before fp8bench's processes start: whether others use the GPUs, because a step time on a
shared GPU measures neither, and how much memory each rank may take. This is not a lock: others may begin a moment
later, and the telemetry would show that only as a lower clock.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from fp8bench.machine import nvml
from fp8bench.machine.host import free_host_bytes
from fp8bench.machine.nvml import pynvml, query
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import Frozen, made_of, text_if_any
from fp8bench.schema.machine import GIB, gib
from fp8bench.tables.written import counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The folder in which a driver creates a file for each GPU: `nvidia0`.
DEVICES = Path("/dev")
DMI_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
# Suffix of the name of a GPU of which a process sees a slice: it has another price, and is compared as another GPU.
SLICED = " (MIG)"
GPU, SLICE = "GPU-", "MIG-"
# How long the driver may take to free the memory of fp8bench's own previous round:
RELEASE_S, POLL_S = 5.0, 0.25


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


def asked(
    what: str | Callable[[Any], Any], *given: int, read: Callable[[Any], Any] = lambda told: told
) -> Callable[[Any], Any]:
    """Return what answers a question about a GPU, by its handle; None if that is not told. what: NVML's function after
    `nvmlDeviceGet`, or one of ours. given: its other arguments. read: makes the answer of what is told.
    """

    def answer(handle: Any) -> Any:
        told = query(getattr(pynvml, f"nvmlDeviceGet{what}") if isinstance(what, str) else what, handle, *given)
        return None if told is None else read(told)

    return answer


def _nvlinks(handle: Any) -> int | None:
    states = [query(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    known = [bool(state) for state in states if state is not None]
    return sum(known) if known else None


def _watts(milliwatts: int) -> float:
    return milliwatts * 1e-3


UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
SLOWDOWN = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN


class GpuFacts(Frozen):
    """What NVML answers. index: NVML's. Memory in use is of all processes, without what the driver reserves."""

    index: int
    name: str
    capability: Annotated[tuple[int, int] | None, asked("CudaComputeCapability")] = None
    memory_used_bytes: Annotated[int | None, asked(nvml.memory, read=lambda memory: int(memory.used))] = None
    processes: Annotated[int | None, asked(nvml.process_bytes, read=len)] = None
    utilization_percent: Annotated[int | None, asked("UtilizationRates", read=lambda rates: int(rates.gpu))] = None
    power_limit_w: Annotated[float | None, asked("EnforcedPowerLimit", read=_watts)] = None
    power_default_w: Annotated[float | None, asked("PowerManagementDefaultLimit", read=_watts)] = None
    ecc: Annotated[bool | None, asked("EccMode", read=itemgetter(0))] = None
    ecc_pending: Annotated[bool | None, asked("EccMode", read=itemgetter(1))] = None
    uncorrected_errors: Annotated[int | None, asked("TotalEccErrors", *UNCORRECTED)] = None
    remap_pending: Annotated[bool | None, asked("RemappedRows", read=itemgetter(2))] = None
    remap_failed: Annotated[bool | None, asked("RemappedRows", read=itemgetter(3))] = None
    throttle_reasons: Annotated[int | None, asked(nvml.throttle_reasons)] = None
    temperature_c: Annotated[int | None, asked("Temperature", pynvml.NVML_TEMPERATURE_GPU)] = None
    slowdown_temperature_c: Annotated[int | None, asked("TemperatureThreshold", SLOWDOWN)] = None
    application_clock_mhz: Annotated[int | None, asked("ApplicationsClock", pynvml.NVML_CLOCK_SM)] = None
    default_application_clock_mhz: Annotated[int | None, asked("DefaultApplicationsClock", pynvml.NVML_CLOCK_SM)] = None
    max_clock_mhz: Annotated[int | None, asked("MaxClockInfo", pynvml.NVML_CLOCK_SM)] = None
    mig: bool | None = None
    nvlinks: Annotated[int | None, asked(_nvlinks)] = None
    compute_mode: Annotated[int | None, asked("ComputeMode")] = None

    @classmethod
    def of(cls, gpu: Gpu) -> "GpuFacts":
        handle, fields = pynvml.nvmlDeviceGetHandleByIndex(gpu.index), cls.model_fields.items()
        return made_of(cls, gpu, **{name: answer(handle) for name, field in fields for answer in field.metadata})


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
                gpus=tuple(map(GpuFacts.of, seen)),
                hidden=len(gpus) - len(seen),
                on_the_bus=on_the_bus,
            )
    except pynvml.NVMLError as error:
        # A driver is not missed if there is no GPU, or if none is wanted.
        missed = not isinstance(error, nvml.NO_DRIVER) or (on_the_bus and not hides_all(environ.get(VISIBLE)))
        return DriverFacts(on_the_bus=on_the_bus, error=str(error) if missed else None)


def is_held(processes: int | None, used_bytes: int | None) -> bool:
    """Return whether a GPU is in use. None is unknown, and no sign of use."""
    # A container shows no process of the host, so much memory counts too. Idle cards use up to some hundred MiB for the
    # driver, and a CUDA context uses as much again.
    return bool(processes) or (used_bytes or 0) > GIB


def busy_gpus(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return what uses each GPU that is in use now, in words, by its index. Raises pynvml.NVMLError."""
    found = {}
    with nvml.opened() if gpus else nullcontext():
        for gpu in gpus:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            used = int(nvml.memory(handle).used)
            # Not every user may see processes, or not on every card; the memory is a sign too.
            shares = nvml.process_bytes(handle) or []
            if is_held(len(shares), used):
                # If NVML does not report every share, all memory in use counts.
                known = [share for share in shares if share is not None]
                in_use = gib(sum(known) if shares and len(known) == len(shares) else used)
                others = counted(len(shares), "other process", "other processes")
                found[gpu.index] = f"{others}, {in_use}" if shares else f"{in_use} of processes unseen"
    return found


def require_idle(environ: Mapping[str, str], local_rank: int | None, allow_busy: bool) -> tuple[str, ...]:
    """Return marks for the record, none on idle GPUs; wait up to RELEASE_S for a GPU to become idle. local_rank: look
    only at this rank's GPU; None: at every visible one. Raises ModeUnavailable if a GPU is busy, unless allow_busy.
    """
    deadline = time.monotonic() + RELEASE_S
    try:
        gpus = visible(gpus_here(), environ)
        watched = gpus if local_rank is None else gpus[local_rank : local_rank + 1]
        while (busy := busy_gpus(watched)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    except pynvml.NVMLError as error:
        return (f"could not see whether the GPU is busy: {error}",)
    if busy and not allow_busy:
        raise ModeUnavailable(
            "; ".join(f"GPU {index} is busy: {use}" for index, use in busy.items()),
            "End them, choose other GPUs with CUDA_VISIBLE_DEVICES, or measure anyway, marked, with --allow-busy",
        )
    return tuple(f"busy GPU: {use}" for use in busy.values())


def room_bytes(device: Literal["cuda", "cpu"], ranks: int, environ: Mapping[str, str]) -> int | None:
    """Return the free memory for each rank here, of the GPU that has the least; None: unknown, as of a slice."""
    if device == "cpu":
        free = free_host_bytes()
        return None if free is None else free // ranks
    try:
        gpus = visible(gpus_here(), environ)[:ranks]
        if any(gpu.mig for gpu in gpus):
            return None
        with nvml.opened():
            found = [query(nvml.memory, pynvml.nvmlDeviceGetHandleByIndex(gpu.index)) for gpu in gpus]
    except pynvml.NVMLError:
        return None
    return None if None in found else min((int(memory.free) for memory in found), default=None)
