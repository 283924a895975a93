"""What the GPU was doing: clock, temperature, power and throttling from NVML, and how much memory was used at the
peak.
"""

import resource
from collections.abc import Callable
from typing import Any

import pynvml
import torch

from fp8bench.schema.record import GpuState, RankMemory


def gpu_state(device: torch.device) -> GpuState | None:
    """The device's state now; None on a CPU, or where NVML does not know the device (inside some containers)."""
    if device.type != "cuda":
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None
    clock = _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
    temperature = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    power = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    throttle = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return GpuState(
        sm_clock_mhz=clock,
        temperature_c=temperature,
        power_w=None if power is None else power / 1e3,
        power_limit_w=None if limit is None else limit / 1e3,
        throttle_reasons=throttle,
    )


def _ask(function: Callable[..., Any], *arguments: Any) -> int | None:
    try:
        return int(function(*arguments))
    except pynvml.NVMLError:
        return None


def reset_peaks(device: torch.device) -> None:
    """Forget what was allocated so far, and give the allocator's spare memory back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device, rank: int) -> RankMemory:
    """Peaks since the last reset; the host's is the process's whole life (ru_maxrss, KiB on Linux)."""
    on_gpu = device.type == "cuda"
    return RankMemory(
        rank=rank,
        peak_allocated_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
        peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
