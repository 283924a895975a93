"""What NVIDIA's driver reports of itself and of each GPU that a run would see; no UUID and no serial number is kept."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fp8bench.machine import nvml
from fp8bench.machine.gpus import VISIBLE, Gpu, hides_all, listed, visible
from fp8bench.machine.nvml import pynvml, query
from fp8bench.schema.files import Frozen, text_if_any


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

    def of(function: Callable[..., Any], *arguments: Any) -> Any:
        return query(function, handle, *arguments)

    limit_mw = of(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    usual_mw = of(pynvml.nvmlDeviceGetPowerManagementDefaultLimit)
    memory, processes = of(nvml.memory), nvml.process_bytes(handle)
    utilization = of(pynvml.nvmlDeviceGetUtilizationRates)
    ecc, ecc_pending = of(pynvml.nvmlDeviceGetEccMode) or (None, None)
    _, _, remap_pending, remap_failed = of(pynvml.nvmlDeviceGetRemappedRows) or (None, None, None, None)
    states = [of(pynvml.nvmlDeviceGetNvLinkState, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    links = [bool(state) for state in states if state is not None]
    uncorrected, sm_clock = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_CLOCK_SM
    slowdown = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    return GpuFacts(
        index=gpu.index,
        name=gpu.name,
        capability=of(pynvml.nvmlDeviceGetCudaComputeCapability),
        memory_used_bytes=None if memory is None else int(memory.used),
        processes=None if processes is None else len(processes),
        utilization_percent=None if utilization is None else int(utilization.gpu),
        power_limit_w=None if limit_mw is None else limit_mw * 1e-3,
        power_default_w=None if usual_mw is None else usual_mw * 1e-3,
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
        mig=gpu.mig,
        nvlinks=sum(links) if links else None,
        compute_mode=of(pynvml.nvmlDeviceGetComputeMode),
    )
