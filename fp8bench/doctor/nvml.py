"""Looking at the GPUs through NVML: no CUDA context is made, so the look itself leaves nothing on the GPU.

What a driver, a container or a virtual machine does not tell becomes None. UUIDs and serial numbers are never kept.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml

from fp8bench.doctor.driver_facts import DriverFacts, GpuFacts, Version
from fp8bench.schema.files import text_if_any
from fp8bench.schema.visible_gpus import hides_all, visible_gpus

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"
MILLI = 1e-3


def look(environ: Mapping[str, str], nvml: Any = pynvml, pci: Path = PCI_DEVICES) -> DriverFacts:
    """environ: CUDA_VISIBLE_DEVICES is heeded. nvml: the pynvml module."""
    on_the_bus = gpus_on_the_bus(pci)
    setting = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        nvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        # Nothing is missing where there is no GPU, or where none is wanted.
        missed = on_the_bus and not hides_all(setting)
        return DriverFacts(on_the_bus=on_the_bus, error=str(error) if missed else None)
    except pynvml.NVMLError as error:
        return DriverFacts(on_the_bus=on_the_bus, error=str(error))
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [str(_ask(nvml.nvmlDeviceGetUUID, handle) or "") for handle in handles]
        seen = visible_gpus(uuids, setting)
        return DriverFacts(
            version=_ask(nvml.nvmlSystemGetDriverVersion),
            cuda=_cuda(_ask(nvml.nvmlSystemGetCudaDriverVersion_v2)),
            gpus=tuple(_gpu(nvml, index, handles[index]) for index in seen),
            hidden=len(handles) - len(seen),
            on_the_bus=on_the_bus,
        )
    except pynvml.NVMLError as error:
        return DriverFacts(on_the_bus=on_the_bus, error=str(error))
    finally:
        nvml.nvmlShutdown()


def gpus_on_the_bus(pci: Path) -> int:
    """NVIDIA's display and 3D controllers on the PCI bus."""
    return sum(
        text_if_any(device / "vendor").strip() == NVIDIA_VENDOR
        and text_if_any(device / "class").strip().startswith(DISPLAY_CLASS)
        for device in _each(pci)
    )


def _each(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _gpu(nvml: Any, index: int, handle: Any) -> GpuFacts:
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2) or _ask(
        nvml.nvmlDeviceGetMemoryInfo, handle
    )
    processes = _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    utilization = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    ecc, ecc_pending = _ask(nvml.nvmlDeviceGetEccMode, handle) or (None, None)
    _, _, remap_pending, remap_failed = _ask(nvml.nvmlDeviceGetRemappedRows, handle) or (None, None, None, None)
    mig = _ask(nvml.nvmlDeviceGetMigMode, handle)
    _, power_max = _ask(nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle) or (None, None)
    return GpuFacts(
        index=index,
        name=str(_ask(nvml.nvmlDeviceGetName, handle) or "GPU of unknown name"),
        capability=_ask(nvml.nvmlDeviceGetCudaComputeCapability, handle),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        processes=None if processes is None else len(processes),
        process_memory_bytes=None if processes is None else sum(int(p.usedGpuMemory or 0) for p in processes),
        utilization_percent=None if utilization is None else int(utilization.gpu),
        power_limit_w=_watts(_ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        power_default_w=_watts(_ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
        power_max_w=_watts(power_max),
        persistence=_flag(_ask(nvml.nvmlDeviceGetPersistenceMode, handle)),
        ecc=_flag(ecc),
        ecc_pending=_flag(ecc_pending),
        uncorrected_errors=_ask(
            nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        remap_pending=_flag(remap_pending),
        remap_failed=_flag(remap_failed),
        throttle_reasons=_ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        temperature_c=_ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        slowdown_temperature_c=_ask(
            nvml.nvmlDeviceGetTemperatureThreshold, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        application_clock_mhz=_ask(nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_SM),
        default_application_clock_mhz=_ask(nvml.nvmlDeviceGetDefaultApplicationsClock, handle, nvml.NVML_CLOCK_SM),
        max_clock_mhz=_ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        mig=None if mig is None else bool(mig[0]),
        nvlinks=_nvlinks(nvml, handle),
        compute_mode=_ask(nvml.nvmlDeviceGetComputeMode, handle),
    )


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this GPU, driver or user gets none."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts * MILLI


def _cuda(encoded: int | None) -> Version | None:
    """NVML says 12040 for 12.4."""
    return None if encoded is None else (encoded // 1000, encoded % 1000 // 10)


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    """Active links; None where the GPU has none to ask."""
    states = [_ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    answered = [state for state in states if state is not None]
    return sum(map(bool, answered)) if answered else None
