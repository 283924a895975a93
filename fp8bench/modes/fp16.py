"""`baseline-fp16`: the plain model under fp16 autocast, as people trained before bf16, and on GPUs without it.

fp16 has 10 bits of mantissa and a largest value of 65504, below which gradients vanish long before they are small. So
the loss is multiplied by a scale (torch.amp.GradScaler): gradients are divided by it again before the optimizer sees
them, a step whose gradients are not finite is skipped and halves the scale, and 2000 good ones in a row double it.

Nothing of it waits for the GPU where the optimizer is a fused one, as ours are there: that skips by itself, by a number
on the device. So a step can be captured in a CUDA graph with its skips, and the proof of what was executed compares the
scale as well. Skipped steps are counted on the device, by the scale's falling.
"""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fp8bench.modes.baseline import BaselineBF16

GATE_SCALES = (65536.0, 4096.0, 256.0, 16.0, 1.0)
"""What the gate multiplies its loss with: the first under which the gradient at the input is finite."""


class LossScaling:
    """torch's GradScaler, whose scale is there before the first step, and a count of skipped steps on the device."""

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        # It makes its scale when it first scales something.
        self._scaler.scale(torch.zeros((), device=device))
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward is to begin with. loss: a scalar."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step with gradients divided by the scale, or none; and the next scale."""
        _begin_momentum(optimizer)
        scale, _ = self.state()
        before = scale.clone()
        self._scaler.step(optimizer)
        self._scaler.update()
        self._steps += 1
        self._skipped += (scale < before).to(torch.int64)

    def state(self) -> list[Tensor]:
        """The scale, and how many good steps there were in a row; in place for ever."""
        return [self._scaler._scale, self._scaler._growth_tracker]  # type: ignore[list-item]

    def evidence(self) -> dict[str, Any]:
        """Over all steps of the process: warm-up, proof, timed and profiled ones."""
        scale, _ = self.state()
        return {
            "loss_scale": float(scale),
            "optimizer_steps": int(self._steps),
            "skipped_steps": int(self._skipped),
        }


class BaselineFP16(BaselineBF16):
    """float32 weights, fp16 autocast, the loss scaled."""

    name = "baseline-fp16"
    gate_scales: ClassVar[tuple[float, ...]] = GATE_SCALES
    sharding_refusal: ClassVar[str | None] = (
        "torch's GradScaler looks for infinities in what a rank holds, so ranks that share weights would skip steps "
        "apart from each other"
    )
    tensor_parallel_refusal: ClassVar[str | None] = sharding_refusal

    def __init__(self, recipe: str | None = None) -> None:
        super().__init__(recipe)
        self.loss_scaling: LossScaling | None = None

    def convert(self, model: nn.Module) -> nn.Module:
        """The model as it is."""
        self.loss_scaling = LossScaling(next(model.parameters()).device)
        return model

    def forward_context(self) -> AbstractContextManager[Any]:
        """fp16 in place of the loop's bf16."""
        return torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.float16)

    def step_state(self, model: nn.Module) -> list[Tensor]:
        """What the scale is, and when it grows."""
        return self.loss_scaling.state() if self.loss_scaling is not None else []

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """As the baseline's, with the scale and the steps that were skipped for it."""
        scaling = self.loss_scaling.evidence() if self.loss_scaling is not None else {}
        found = {**super().evidence(model), **scaling}
        skipped, steps = scaling.get("skipped_steps", 0), scaling.get("optimizer_steps", 0)
        if skipped * MOST_SKIPPED > steps:
            found["warnings"] = [
                f"{skipped} of {steps} optimizer steps were skipped, as their scaled gradients were not finite: "
                "weights were trained less than steps were timed"
            ]
        return found


MOST_SKIPPED = 10
"""One step in so many may be skipped without a warning: the first scale is too large for most models."""


def _begin_momentum(optimizer: Optimizer) -> None:
    """torch's fused SGD makes its momentum of empty memory in its first step, and fills it there; a first step that is
    skipped would leave it so. From zero it begins the same.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return
    for group in optimizer.param_groups:
        if group.get("momentum"):
            for weight in group["params"]:
                if weight not in optimizer.state:
                    optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
