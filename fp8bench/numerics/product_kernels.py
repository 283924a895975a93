"""The function that multiplies fp8 matrices, which is another in different versions of torch.

torch 2.10 made `torch.nn.functional.scaled_mm` public, with its `ScalingType`; before, and where it does not know the
device, there is `torch._scaled_mm`, which guesses the scaling from the scales' shapes. Both want a row-major left and
a column-major right matrix, and float32 inverse scales: one element each tensorwise, [M, 1] and [1, N] rowwise. The
output is bf16.

A CPU has no fp8 units that torch uses: its kernel widens the operands first. What runs there is right, is marked as
emulated, and its time says nothing. Where a torch has no such kernel for CPUs, the operands are widened here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fp8bench.numerics.product_operands import Quantized

Multiply = Callable[[Quantized, Quantized, bool], Tensor]
"""(left, right, fast accumulation) -> bf16, [M, N]."""


@dataclass(frozen=True)
class Kernel:
    """name: for the record. emulated: no fp8 units take part."""

    name: str
    multiply: Multiply
    emulated: bool


def find_kernel(device: torch.device) -> Kernel:
    """The first that this torch has for the device. For a CPU each is tried on a small product; for a GPU none is: what
    the first one says where fp8 does not run is the reason that a reader is given.
    """
    known: list[tuple[str, Multiply]] = [("torch._scaled_mm", private_scaled_mm)]
    if hasattr(functional, "scaled_mm") and hasattr(functional, "ScalingType"):
        known.insert(0, ("torch.nn.functional.scaled_mm", public_scaled_mm))
    if device.type != "cpu":
        return Kernel(*known[0], emulated=False)
    name, multiply = next((one for one in known if _runs(one[1])), ("torch.mm of float32", widened_mm))
    return Kernel(name, multiply, emulated=True)


def _runs(multiply: Multiply) -> bool:
    """Whether it multiplies on a CPU, with either kind of scales and in either format."""
    ones = torch.ones(32, 32)
    try:
        for scale in (torch.ones(()), torch.ones(32, 1)):
            for left in (torch.float8_e4m3fn, torch.float8_e5m2):
                multiply(Quantized(ones.to(left), scale), Quantized(ones.to(torch.float8_e4m3fn), scale), False)
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


def public_scaled_mm(left: Quantized, right: Quantized, fast: bool) -> Tensor:
    """torch.nn.functional.scaled_mm (torch 2.10 and later)."""
    types = functional.ScalingType
    scaling = types.RowWise if left.inverse_scale.dim() else types.TensorWise
    product: Tensor = functional.scaled_mm(
        left.data,
        right.data.t(),
        left.inverse_scale,
        scaling,
        right.inverse_scale.t(),
        scaling,
        output_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return product


def private_scaled_mm(left: Quantized, right: Quantized, fast: bool) -> Tensor:
    """torch._scaled_mm."""
    product: Tensor = torch._scaled_mm(
        left.data,
        right.data.t(),
        scale_a=left.inverse_scale,
        scale_b=right.inverse_scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return product


def widened_mm(left: Quantized, right: Quantized, fast: bool) -> Tensor:
    """No fp8 units: the same numbers, in float32."""
    return torch.mm(left.dequantized(), right.dequantized().t()).to(torch.bfloat16)
