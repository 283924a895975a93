"""The GPUs of one host, with the catalogue's figures that a prediction uses."""

from dataclasses import dataclass

from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Gpu


@dataclass(frozen=True)
class Machine:
    """GPUs of one host that train together. Every figure is of one GPU. Peaks are dense, in TFLOP/s; bandwidths are in
    GB/s, NVLink's as the sum of both directions; the clock is in MHz. None means that the catalogue has no such figure.
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
        """Return a figure of the catalogue. Raises UsageError if the catalogue has none."""
        value: float | None = getattr(self, field)
        if value is None:
            raise UsageError(
                f"{field} of {self.gpu} is not known, and a prediction needs it",
                "Name an instance whose GPU has it, or give the figure in the catalogue with its source",
            )
        return value

    @property
    def sm_gcycles_s(self) -> float:
        """Cycles of all SMs together, in billions a second. Raises UsageError as `figure` does."""
        return self.figure("sm_count") * self.figure("sm_clock_mhz") / 1e3


def machine(gpu: Gpu, gpus: int) -> Machine:
    """Return a machine with this number of the catalogue's GPUs in one host."""
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
