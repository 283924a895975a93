"""What NVIDIA's driver says of itself and of each GPU that a run would see. None: it does not say."""

from collections.abc import Callable

from fp8bench.schema.frozen import Frozen

Version = tuple[int, ...]


class GpuFacts(Frozen):
    """One GPU. index: NVML's. Memory includes what the driver keeps out of no one's process, not what it reserves."""

    index: int
    name: str
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    processes: int | None = None
    process_memory_bytes: int | None = None
    utilization_percent: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_max_w: float | None = None
    persistence: bool | None = None
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
    """error: NVML's word where it ought to answer and does not; a machine without GPU and driver has none. hidden:
    GPUs that CUDA_VISIBLE_DEVICES keeps from a run. on_the_bus: NVIDIA GPUs on the PCI bus, which are there with or
    without a driver.
    """

    version: str | None = None
    cuda: Version | None = None
    gpus: tuple[GpuFacts, ...] = ()
    hidden: int = 0
    on_the_bus: int = 0
    error: str | None = None

    @property
    def why_no_gpu(self) -> str | None:
        """In a few words why no GPU can be examined; None where one can."""
        if self.gpus:
            return None
        if self.error is not None:
            return "the driver does not answer"
        return "CUDA_VISIBLE_DEVICES hides every GPU" if self.hidden else "no GPU here"


def which(gpus: tuple[GpuFacts, ...], holds: Callable[[GpuFacts], bool]) -> tuple[GpuFacts, ...]:
    """The GPUs of which it holds."""
    return tuple(gpu for gpu in gpus if holds(gpu))


def named(gpus: tuple[GpuFacts, ...]) -> str:
    """`GPU 0`, `GPUs 0, 3`."""
    return f"GPU{'' if len(gpus) == 1 else 's'} {', '.join(str(gpu.index) for gpu in gpus)}"
