"""GPUs whose figures are round, so that a test can be read."""

from typing import Any

from known import gpu as gpu_called

from fp8bench.predict.step import Machine, Work


def machine(gpu: str = "fast", gpus: int = 1, **changes: Any) -> Machine:
    """A GPU of 250 operations a byte."""
    return Machine(gpu_called(gpu, **changes), gpus)


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
