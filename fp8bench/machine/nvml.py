"""NVML, NVIDIA's management library: the one place that opens it, and the queries that several others make.

It makes no CUDA context, so a query leaves nothing on a GPU. It ignores CUDA_VISIBLE_DEVICES: see `machine.gpus`.
Nothing but pynvml is imported, since the sampler beside each rank starts with this module.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import pynvml as pynvml
except (ImportError, OSError, RuntimeError, SyntaxError, AttributeError, TypeError, ValueError) as error:
    # How a package fails that is damaged, or another of the same name.
    from fp8bench.schema.errors import ModeUnavailable, in_words

    raise ModeUnavailable(
        in_words(f"pynvml cannot be imported: {type(error).__name__}: {error}"),
        "Install it anew: `pip install --force-reinstall nvidia-ml-py`",
    ) from error

NO_DRIVER = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)
"""How NVML does not start on a machine that has no GPU, and on one whose driver is not there."""


@contextmanager
def opened() -> Iterator[None]:
    """NVML, within the context; NVML counts who opened it. Raises pynvml.NVMLError where it does not start."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        # The values are there, and the process's end closes it too.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def query(function: Callable[..., Any], *arguments: Any) -> Any:
    """What pynvml's function returns, or None where this GPU, driver or user gets nothing."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def memory(handle: Any) -> Any:
    """`total` and `used`, bytes; without what the driver keeps for itself, where the driver separates the two."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def process_bytes(handle: Any) -> list[int | None] | None:
    """The memory of each compute process on the GPU, None for one whose share is unknown; None as a whole where
    processes may not be seen.
    """
    processes = query(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if processes is None else [process.usedGpuMemory for process in processes]


def throttle_reasons(handle: Any) -> int:
    """NVML's bit mask. The call was renamed: an older driver or nvidia-ml-py has the old name only, a future one the
    new.
    """
    newer = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if newer is not None:
        try:
            return int(newer(handle))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def driver_version() -> str | None:
    """The driver's; None without one."""
    try:
        with opened():
            return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
