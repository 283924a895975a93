"""The plain model: under bf16 autocast, in float32, and in float32 on tf32 matrix units.

`baseline-bf16` is the mode that all others are compared with, for parity and for cost.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE, CompilePolicy, compute_capability, count_linears, refuse_recipe
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.rank import Tolerance


class BaselineBF16:
    """float32 weights under bf16 autocast, which the training loop applies: the most common way to train with torch."""

    name = "baseline-bf16"
    tolerance: ClassVar[Tolerance] = BF16_TOLERANCE
    compile_policy = CompilePolicy(auto=True, reason="torch.compile fuses the pointwise work between the GEMMs")

    def __init__(self, recipe: str | None = None) -> None:
        refuse_recipe(self.name, recipe)

    def check(self, device: torch.device) -> None:
        """Accept any device that torch supports."""

    def convert(self, model: nn.Module) -> nn.Module:
        return model

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        return {"converted_layers": 0, "total_layers": count_linears(model), "recipe": None}


class BaselineFP32(BaselineBF16):
    """float32 throughout: the loop's autocast is disabled, and GEMMs use all 23 bits of mantissa."""

    name = "baseline-fp32"
    gathered_dtype: ClassVar[str | None] = None
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
