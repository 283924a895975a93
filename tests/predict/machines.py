"""GPUs whose figures are round, so that a test can be read."""

from typing import Any

from fp8bench.predict.machine import Machine
from fp8bench.predict.work import Work

FIGURES: dict[str, Any] = {
    "compute_capability": "9.0",
    "dense_bf16_tflops": 1000.0,
    "dense_fp8_tflops": 2000.0,
    "memory_bandwidth_gb_s": 4000.0,
    "nvlink_gb_s": 900.0,
    "sm_count": 100,
    "sm_clock_mhz": 1000.0,
}


def machine(gpu: str = "fast", gpus: int = 1, **changes: Any) -> Machine:
    """A GPU of 250 operations a byte."""
    return Machine(gpu=gpu, gpus=gpus, **{**FIGURES, **changes})


def work(**changes: Any) -> Work:
    """A step of 100 ms of which 5 are idle; 600 tokens make 350 operations a byte of attention."""
    values: dict[str, Any] = {
        "step_s": 0.1,
        "by_category": {"gemm_bf16": 0.05, "elementwise": 0.03, "attention": 0.01, "other": 0.005},
        "tokens": 600,
        "sequences": 64,
        "flops": 6 * 1e9 * 600 * 64,
    }
    return Work(**{**values, **changes})
