"""Whether a GPU's memory can hold what training keeps, before anything is built.

Weights, their gradients and the optimizer's state are known from the number of parameters, all in float32: 12 bytes for
each with SGD and its momentum, 16 with Adam. Activations are not known beforehand, so what passes here may still run
out; but a model that cannot fit at any batch is refused within seconds, with what is missing. A workload that does not
say how many parameters it has is not examined.
"""

from collections.abc import Callable

import torch

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import OptimizerName
from fp8bench.workloads.protocol import Workload

FLOAT32_BYTES = 4

STATES: dict[OptimizerName, int] = {"sgd": 1, "adam": 2, "adamw": 2}
"""Tensors as large as the weights that an optimizer keeps: momentum, or both moments."""


def kept_bytes(parameters: int, optimizer: OptimizerName) -> int:
    """Weights, gradients and optimizer state of a model whose parameters are float32."""
    return parameters * FLOAT32_BYTES * (2 + STATES[optimizer])


def require_memory(config: RunConfig, workload: Workload, device: torch.device) -> None:
    """Raises ModeUnavailable on a GPU that cannot hold the model: how much is missing, and what helps."""
    count: Callable[[], int] | None = getattr(workload, "parameters", None)
    if device.type != "cuda" or count is None:
        return
    free = torch.cuda.mem_get_info(device)[0]
    refuse_too_large(config, count(), free)


def refuse_too_large(config: RunConfig, parameters: int, free_bytes: int) -> None:
    """Raises ModeUnavailable where what is kept exceeds what is free of a GPU's memory."""
    needed = kept_bytes(parameters, config.optimizer)
    if needed <= free_bytes:
        return
    least = min(STATES, key=lambda name: STATES[name])
    smaller = kept_bytes(parameters, least)
    helps = f"--optimizer {least} (it needs {_gib(smaller)}), " if smaller <= free_bytes else ""
    raise ModeUnavailable(
        f"{config.workload} needs {_gib(needed)} for weights, gradients and the state of {config.optimizer} "
        f"({parameters / 1e9:.2f}e9 parameters), and {_gib(free_bytes)} of this GPU are free: "
        f"{_gib(needed - free_bytes)} are missing",
        f"No batch size helps: use {helps}a GPU with more memory or a smaller workload",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
