"""What optimizers do to a weight, written out once more: for the steps with which those as executed are compared.

torch's optimizers run hooks that anybody may register, and a program may replace their methods; then both sides of a
comparison would change. The rules are those of torch's documentation of SGD, Adam and AdamW.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from fp8bench.schema.execution import OptimizerName
from fp8bench.worker.execution.optimizers import SETTINGS

CLASSES: dict[OptimizerName, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def settings_of(name: OptimizerName) -> dict[str, Any]:
    """Return torch's settings of the optimizer, with those that differ from its defaults; none for `none`."""
    if name == "none":
        return {}
    made: Any = CLASSES[name]
    return dict(made([torch.zeros(1)], **SETTINGS[name]).defaults)


class UpdateRule:
    """The rule for one weight, with what it keeps: `exp_avg` and `exp_avg_sq` of Adam, `momentum_buffer` of SGD."""

    def __init__(self, name: OptimizerName) -> None:
        self.state: dict[str, Tensor] = {}
        self._name = name
        self._settings = settings_of(name)
        self._steps = 0

    @torch.no_grad()
    def step(self, weight: Tensor, gradient: Tensor) -> None:
        """Change the weight in place by a step along its gradient."""
        if self._name == "none":
            return
        self._steps += 1
        rate = self._number("lr")
        weight.mul_(1 - rate * self._number("weight_decay"))
        if self._name == "sgd":
            kept = self.state.setdefault("momentum_buffer", torch.zeros_like(gradient))
            kept.mul_(self._number("momentum")).add_(gradient)
            weight.sub_(kept, alpha=rate)
            return
        # Adam's two means are of the gradient and of its square.
        first, second = self._settings["betas"]
        mean = self.state.setdefault("exp_avg", torch.zeros_like(gradient)).lerp_(gradient, 1 - first)
        square = self.state.setdefault("exp_avg_sq", torch.zeros_like(gradient))
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = square.sqrt().div_(math.sqrt(1 - second**self._steps)).add_(self._number("eps"))
        weight.addcdiv_(mean, size, value=-rate / (1 - first**self._steps))

    def _number(self, setting: str) -> float:
        return float(self._settings[setting])
