"""The optimizers, in torch's fastest implementation for the device, and what the fingerprint calls them.

On a GPU that is the fused one: torch's documentation ranks fused above foreach above a loop over the weights. Adam then
keeps its step count on the device, and is told to leave it there (capturable), so that a CUDA graph can hold a whole
step. On a CPU torch's own default holds.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fp8bench.schema.execution import OptimizerName

_CLASSES: dict[OptimizerName, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

_NAMES: dict[OptimizerName, str] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

_SETTINGS: dict[OptimizerName, dict[str, float]] = {
    "sgd": {"lr": 0.001, "momentum": 0.9},
    "adam": {"lr": 0.0001},
    "adamw": {"lr": 0.0001, "weight_decay": 0.01},
}
"""SGD's are the articles'. Adam's rate is a tenth of torch's default, under which a large transformer diverges without
a warm-up of its rate.
"""


def make_optimizer(name: OptimizerName, parameters: Iterable[nn.Parameter], device: torch.device) -> Optimizer:
    """The optimizer over the weights."""
    on_gpu = device.type == "cuda"
    implementation: dict[str, Any] = {"fused": True} if on_gpu else {}
    if on_gpu and name != "sgd":
        implementation["capturable"] = True
    return _CLASSES[name](parameters, **_SETTINGS[name], **implementation)


def described(name: OptimizerName, device: torch.device) -> str:
    """Its name in the fingerprint, with its settings and, where we choose it, the implementation."""
    settings = [f"{setting}={value:g}" for setting, value in _SETTINGS[name].items()]
    return f"{_NAMES[name]}({', '.join([*settings, *(['fused'] if device.type == 'cuda' else [])])})"
