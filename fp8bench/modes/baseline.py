"""The plain model: under bf16 autocast, in float32, in float32 on tf32 matrix units, and under fp16 autocast.

`baseline-bf16` is the mode that all others are compared with, for parity and for cost.
`baseline-fp16` was common before bf16 and is for GPUs without it. fp16's range below 1 is so short that small gradients
become zero. So the loss is multiplied by a scale (torch.amp.GradScaler): gradients are divided by it before the
optimizer uses them, a step whose gradients are not finite is skipped and halves it, and 2000 good ones in a row double
it. A fused optimizer skips the step by a number on the device, so a step can be captured in a CUDA graph with its
skips, and the proof of execution also compares the scale.
"""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fp8bench.modes.protocol import CompilePolicy, Mode, compute_capability, named
from fp8bench.schema.errors import ModeUnavailable


class BaselineBF16(Mode):
    """float32 weights under bf16 autocast, which the training loop applies: the most common way to train with torch."""

    name = "baseline-bf16"
    compile_policy = CompilePolicy(auto=True, reason="torch.compile fuses the pointwise work between the GEMMs")

    def convert(self, model: nn.Module) -> nn.Module:
        return model

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        return {"converted_layers": 0, "total_layers": len(named(model, nn.Linear)), "recipe": None}


class BaselineFP32(BaselineBF16):
    """float32 throughout: the loop's autocast is disabled, and GEMMs use all 23 bits of mantissa."""

    name = "baseline-fp32"
    gathered_dtype = None
    matmul_precision: ClassVar[str] = "highest"

    def convert(self, model: nn.Module) -> nn.Module:
        """Return the model unchanged. Sets the matrix precision of this process, which no other mode shares."""
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.allow_tf32 = self.matmul_precision != "highest"
        return model

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda" if torch.cuda.is_available() else "cpu", enabled=False)

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        return {**super().evidence(model), "float32_matmul_precision": torch.get_float32_matmul_precision()}


class BaselineTF32(BaselineFP32):
    """float32 weights and activations; GEMMs round their inputs to tf32's 10 bits of mantissa."""

    name = "baseline-tf32"
    matmul_precision: ClassVar[str] = "high"

    def check(self, device: torch.device) -> None:
        if compute_capability(device) < (8, 0):
            raise ModeUnavailable(
                f"tf32 needs a GPU of compute capability 8.0 or more, and this is {device.type}",
                "Use baseline-fp32 here",
            )


class LossScaling:
    """torch's GradScaler with its scale created before the first step, and a count of skipped steps on the device."""

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        # GradScaler creates its scale when it first scales something.
        self._scaler.scale(torch.zeros((), device=device))
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def step(self, optimizer: Optimizer) -> None:
        """Take the optimizer's step with gradients divided by the scale, or skip it; then update the scale."""
        _begin_momentum(optimizer)
        scale, _ = self.state()
        before = scale.clone()
        self._scaler.step(optimizer)
        self._scaler.update()
        self._steps += 1
        self._skipped += (scale < before).to(torch.int64)

    def state(self) -> list[Tensor]:
        """Return the scale and the number of consecutive good steps. These tensors are only updated in place."""
        return [self._scaler._scale, self._scaler._growth_tracker]  # type: ignore[list-item]

    def evidence(self) -> dict[str, Any]:
        steps, skipped = int(self._steps), int(self._skipped)
        return {"loss_scale": float(self.state()[0]), "optimizer_steps": steps, "skipped_steps": skipped}


class BaselineFP16(BaselineBF16):
    """float32 weights under fp16 autocast, with a scaled loss. gate_scales: the factors of the gate's loss."""

    name = "baseline-fp16"
    gate_scales = (65536.0, 4096.0, 256.0, 16.0, 1.0)
    sharding_refusal = (
        "torch's GradScaler looks for infinities in what a rank holds, so ranks that share weights would skip steps "
        "apart from each other"
    )
    tensor_parallel_refusal = sharding_refusal
    loss_scaling: LossScaling | None = None

    def convert(self, model: nn.Module) -> nn.Module:
        self.loss_scaling = LossScaling(next(model.parameters()).device)
        return model

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.float16)

    def step_state(self, model: nn.Module) -> list[Tensor]:
        return self.loss_scaling.state() if self.loss_scaling is not None else []

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        scaling = self.loss_scaling.evidence() if self.loss_scaling is not None else {}
        found = {**super().evidence(model), **scaling}
        skipped, steps = scaling.get("skipped_steps", 0), scaling.get("optimizer_steps", 0)
        # One step in ten may be, because the first scale is too large for most models.
        if skipped * 10 > steps:
            found["warnings"] = [
                f"{skipped} of {steps} optimizer steps were skipped, as their scaled gradients were not finite: "
                "weights were trained less than steps were timed"
            ]
        return found


def _begin_momentum(optimizer: Optimizer) -> None:
    # torch's fused SGD allocates its momentum as empty memory in its first step and fills it there, so a skipped first
    # step would leave it uninitialized. Starting from zero gives the same result.
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return
    for group in optimizer.param_groups:
        for weight in group["params"] if group.get("momentum") else ():
            if weight not in optimizer.state:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
