"""What optimizers do to a weight, written out once more: for the steps with which those as executed are compared.

torch's optimizers run hooks that anybody may register, and a program may replace their methods; then both sides of a
comparison would change. The rules are those of torch's documentation of SGD, Adam and AdamW.
"""

import math
from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor

from fp8bench.schema.execution import OptimizerName
from fp8bench.worker.execution.optimizers import CLASSES, SETTINGS


def settings_of(name: OptimizerName) -> dict[str, Any]:
    """Return torch's settings of the optimizer, with those that differ from its defaults; none for `none`."""
    return dict(CLASSES[name]([torch.zeros(1)], **SETTINGS[name]).defaults)


class UpdateRule:
    """The rule for weights. state: what it keeps of each, by its kind (`exp_avg` and `exp_avg_sq` of Adam,
    `momentum_buffer` of SGD) and the weight's name.
    """

    def __init__(self, optimizer: OptimizerName) -> None:
        self.state: dict[str, dict[str, Tensor]] = defaultdict(dict)
        self._optimizer = optimizer
        self._settings = settings_of(optimizer)
        self._steps: Counter[str] = Counter()

    @torch.no_grad()
    def step(self, name: str, weight: Tensor, gradient: Tensor) -> None:
        """Change the weight of this name in place by a step along its gradient."""
        if self._optimizer == "none":
            return
        self._steps[name] += 1
        rate = self._number("lr")
        weight.mul_(1 - rate * self._number("weight_decay"))
        if self._optimizer == "sgd":
            kept = self._kept("momentum_buffer", name, gradient)
            kept.mul_(self._number("momentum")).add_(gradient)
            weight.sub_(kept, alpha=rate)
            return
        # Adam's two means are of the gradient and of its square.
        first, second = self._settings["betas"]
        mean = self._kept("exp_avg", name, gradient).lerp_(gradient, 1 - first)
        square = self._kept("exp_avg_sq", name, gradient)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        taken = self._steps[name]
        size = square.sqrt().div_(math.sqrt(1 - second**taken)).add_(self._number("eps"))
        weight.addcdiv_(mean, size, value=-rate / (1 - first**taken))

    def _kept(self, kind: str, name: str, like: Tensor) -> Tensor:
        kept = self.state[kind]
        if name not in kept:
            kept[name] = torch.zeros_like(like)
        return kept[name]

    def _number(self, setting: str) -> float:
        return float(self._settings[setting])
