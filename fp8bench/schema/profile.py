"""Where a step's time goes, kernel by kernel, from a short profile taken after the timed steps."""

from typing import Literal

from pydantic import Field

from fp8bench.schema.frozen import Frozen

Category = Literal[
    "gemm_fp8", "gemm_bf16", "gemm_fp32", "attention", "cast", "elementwise", "optimizer", "nccl", "copy", "other"
]
"""gemm_bf16 is any 16-bit product, gemm_fp32 float32 and tf32; cast: casts, scales, amax and the transposes of fp8
operands; elementwise: norms, activations, sums; nccl: what of communication no other kernel hides."""

HOST_BOUND_IDLE = 0.10
"""Share of a step from which a GPU that runs nothing is waiting for its host. A GPU that its kernels limit is idle for
little: gaps between kernels, and what the profiled steps differ from the timed ones. Of the records of ViT-Huge on one
and two H200s (results/), 27 are of runs that the GPU limits: at batch 256 idle for 0.3 to 4.0 %, at batch 64 (bf16,
compiled) for 4.4 to 5.0 %. In three te-fp8 at batch 64 waits for Python, and is idle for 43, 50 and 50 %. 10 % is twice
the most of the former and less than a fourth of the least of the latter; a step can be shortened by no more than it.

The host's lead does not tell: it is the depth of the launch queue, about 1,024 launches, which a deep model makes in a
small part of its step although its GPU never waits.
"""


def starved(idle_share: float | None) -> bool | None:
    """Whether a GPU that is idle for this share of a step waits for its host; None where that is unknown."""
    return None if idle_share is None else idle_share >= HOST_BOUND_IDLE


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

    def idle_share(self, step_time_s: float) -> float | None:
        """The share of a timed step in which the GPU ran nothing, 0 where it was busy for longer; None on a CPU, where
        the host is what works.

        step_time_s: as timed, without a profiler.
        """
        return max(0.0, 1 - self.busy_s / step_time_s) if self.device == "cuda" else None

    @property
    def has_fp8_gemm(self) -> bool:
        """Whether any matrix product ran in fp8."""
        return self.by_category.get("gemm_fp8", 0.0) > 0
