"""GPUs of one host, with the figures of the catalogue that a prediction goes by."""

from dataclasses import dataclass

from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Gpu


@dataclass(frozen=True)
class Machine:
    """GPUs of one host that train together. Peaks are dense, TFLOP/s; bandwidths GB/s, NVLink's in both directions
    together; the clock MHz; each of one GPU. None: the catalogue has no such figure.
    """

    gpu: str
    gpus: int
    compute_capability: str
    dense_bf16_tflops: float | None
    dense_fp8_tflops: float | None
    memory_bandwidth_gb_s: float | None
    nvlink_gb_s: float | None
    sm_count: int | None = None
    sm_clock_mhz: float | None = None

    def figure(self, field: str) -> float:
        """One of the catalogue's. Raises UsageError where it has none."""
        value: float | None = getattr(self, field)
        if value is None:
            raise UsageError(
                f"{field} of {self.gpu} is not known, and a prediction needs it",
                "Name an instance whose GPU has it, or give the figure in the catalogue with its source",
            )
        return value

    @property
    def sm_gcycles_s(self) -> float:
        """Cycles of all SMs together, billions a second. Raises UsageError as `figure` does."""
        return self.figure("sm_count") * self.figure("sm_clock_mhz") / 1e3


def machine(gpu: Gpu, gpus: int) -> Machine:
    """So many of the catalogue's GPUs, in one host."""
    return Machine(
        gpu=gpu.name,
        gpus=gpus,
        compute_capability=gpu.compute_capability,
        dense_bf16_tflops=gpu.dense_bf16_tflops,
        dense_fp8_tflops=gpu.dense_fp8_tflops,
        memory_bandwidth_gb_s=gpu.memory_bandwidth_gb_s,
        nvlink_gb_s=gpu.nvlink_gb_s,
        sm_count=gpu.sm_count,
        sm_clock_mhz=gpu.sm_clock_mhz,
    )
