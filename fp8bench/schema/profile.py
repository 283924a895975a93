"""Where a step's time goes, kernel by kernel, from a short profile taken after the timed steps."""

from typing import Literal

from pydantic import Field

from fp8bench.schema.frozen import Frozen

Category = Literal[
    "gemm_fp8", "gemm_bf16", "gemm_fp32", "attention", "cast", "elementwise", "optimizer", "nccl", "copy", "other"
]
"""gemm_bf16 is any 16-bit product, gemm_fp32 float32 and tf32; cast: casts, scales, amax and the transposes of fp8
operands; elementwise: norms, activations, sums; nccl: what of communication no other kernel hides."""


class KernelTime(Frozen):
    """One kernel (on a CPU: one operator) over all its launches."""

    name: str
    category: Category
    seconds_per_step: float = Field(ge=0)
    calls_per_step: float = Field(gt=0)


class Profile(Frozen):
    """Seconds a step on rank 0's device. Profiling slows the host, not the kernels: what is busy is measured here, and
    how long a step takes is not.
    """

    device: Literal["cuda", "cpu"]
    steps: int = Field(gt=0)
    busy_s: float = Field(ge=0, description="time in which at least one kernel ran")
    by_category: dict[Category, float] = Field(description="adds up to busy_s; kernels at one time are counted once")
    nccl_s: float = Field(default=0.0, ge=0, description="all communication, hidden behind other kernels or not")
    kernels: tuple[KernelTime, ...] = Field(description="the longest, and every matrix product; longest first")

    @property
    def nccl_overlapped_s(self) -> float:
        """Communication hidden behind other kernels, seconds a step."""
        return max(0.0, self.nccl_s - self.by_category.get("nccl", 0.0))

    @property
    def has_fp8_gemm(self) -> bool:
        """Whether any matrix product ran in fp8."""
        return self.by_category.get("gemm_fp8", 0.0) > 0
