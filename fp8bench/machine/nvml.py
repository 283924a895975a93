"""NVML, NVIDIA's management library: the only module that opens it. NVML creates no CUDA context, and ignores
CUDA_VISIBLE_DEVICES (see `machine.gpus`). Only pynvml is imported, because each rank's sampler starts here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import pynvml as pynvml
except (ImportError, OSError, RuntimeError, SyntaxError, AttributeError, TypeError, ValueError) as error:
    # These are the failures of a package that is damaged, or of another one with the same name.
    from fp8bench.schema.errors import ModeUnavailable, in_words

    raise ModeUnavailable(
        in_words(f"pynvml cannot be imported: {type(error).__name__}: {error}"),
        "Reinstall it: `pip install --force-reinstall nvidia-ml-py`",
    ) from error

# How NVML fails to start on a machine without a GPU, and on one without the driver:
NO_DRIVER = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)


@contextmanager
def opened() -> Iterator[None]:
    """Open NVML within the context; NVML counts its users. Raises pynvml.NVMLError if it does not start."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        # The values are read, and the end of the process closes NVML too.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def query(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what pynvml's function returns, or None if this GPU, driver or user gets nothing."""
    with suppress(pynvml.NVMLError):
        return function(*arguments)
    return None


def memory(handle: Any) -> Any:
    """Return `total` and `used` in bytes, without the driver's own memory if the driver separates the two."""
    with suppress(pynvml.NVMLError):
        return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def process_bytes(handle: Any) -> list[int | None] | None:
    """Return the memory of each compute process, None for an unknown one; None if processes may not be seen."""
    processes = query(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if processes is None else [process.usedGpuMemory for process in processes]


def throttle_reasons(handle: Any) -> int:
    """Return NVML's bit mask. The call was renamed: older software has only the old name, a future one the new."""
    newer = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if newer is not None:
        try:
            return int(newer(handle))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def driver_version() -> str | None:
    with suppress(pynvml.NVMLError), opened():
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None
