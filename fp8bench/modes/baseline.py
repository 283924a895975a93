"""The plain model: under bf16 autocast, in float32, and in float32 on tf32 matrix units.

`baseline-bf16` is what every other mode is compared with, for parity and for money.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE, CompilePolicy, compute_capability, count_linears
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.rank import Tolerance

_GAINS = CompilePolicy(auto=True, reason="torch.compile fuses the pointwise work between the GEMMs")


class BaselineBF16:
    """float32 weights, bf16 autocast: torch as most people train."""

    name = "baseline-bf16"
    tolerance: ClassVar[Tolerance] = BF16_TOLERANCE
    compile_policy = _GAINS

    def __init__(self, recipe: str | None = None) -> None:
        if recipe is not None:
            raise UsageError(f"mode {self.name!r} has no recipes, so not {recipe!r}", f"Use `--mode {self.name}`")

    def check(self, device: torch.device) -> None:
        """Runs wherever torch does."""

    def convert(self, model: nn.Module) -> nn.Module:
        """The model as it is."""
        return model

    def forward_context(self) -> AbstractContextManager[Any]:
        """Nothing: bf16 autocast is the loop's business."""
        return nullcontext()

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """No layer is converted."""
        return {"converted_layers": 0, "total_layers": count_linears(model), "recipe": None}


class BaselineFP32(BaselineBF16):
    """float32 throughout: autocast is switched off again, and GEMMs keep all 23 bits of mantissa."""

    name = "baseline-fp32"
    gathered_dtype: ClassVar[str | None] = None
    matmul_precision: ClassVar[str] = "highest"

    def convert(self, model: nn.Module) -> nn.Module:
        """The model as it is. Sets this process's matrix precision: each mode has processes of its own."""
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.allow_tf32 = self.matmul_precision != "highest"
        return model

    def forward_context(self) -> AbstractContextManager[Any]:
        """Switches the loop's bf16 autocast off."""
        return torch.autocast("cuda" if torch.cuda.is_available() else "cpu", enabled=False)

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """As the baseline's, with the matrix precision that torch reports."""
        return {**super().evidence(model), "float32_matmul_precision": torch.get_float32_matmul_precision()}


class BaselineTF32(BaselineFP32):
    """float32 weights and activations; GEMMs round their inputs to tf32's 10 bits of mantissa."""

    name = "baseline-tf32"
    matmul_precision: ClassVar[str] = "high"

    def check(self, device: torch.device) -> None:
        """tf32 units came with compute capability 8.0."""
        if compute_capability(device) < (8, 0):
            raise ModeUnavailable(
                f"tf32 needs a GPU of compute capability 8.0 or more, and this is {device.type}",
                "Use baseline-fp32 here",
            )
