"""Operands of a product: random bf16 matrices in the layout that training has them in, and their casts to fp8.

Both operands are written with the inner dimension last: left [M, K], right [N, K], and the product is left right^T.
Training does not always have them so in memory. Its tensors are X [T, I], W [O, I] and dY [T, O], row by row, so that

  role              left, right          of these, transposed in memory
  forward           X,    W              none
  input gradient    dY,   W^T            right
  weight gradient   dY^T, X^T            both

bf16 products take any of these layouts at full speed. fp8 products, up to compute capability 9 and in torch's kernels
later too, want the inner dimension contiguous in both (a row-major left and a column-major right matrix), so that a
cast also copies what lies transposed. That is part of the cost of casting.

A cast is dynamic scaling: scale = largest fp8 value / amax, in float32, so that the largest element becomes the
largest value that the format has; q = clamp(x * scale) in fp8; and the product is multiplied by the inverse scales. It
is written in the operations that torchao's Float8Linear does it with (amax, scale, multiply, clamp, convert), each of
which reads and writes the whole matrix when it is not compiled. A kernel that fuses them (Transformer Engine's, or
torch.compile's of this very function) is cheaper; `delayed` scaling drops the pass for the amax as well.
Every product casts both its operands here, as torchao does; Transformer Engine casts a tensor once for the two products
that use it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fp8bench.schema.gemm import Precision, Product, Role

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
SMALLEST_AMAX = 1e-12
"""torchao's: a tensor of zeros has a finite scale."""

TRANSPOSED: dict[Role, tuple[bool, bool]] = {
    "forward": (False, False),
    "input gradient": (False, True),
    "weight gradient": (True, True),
}


@dataclass(frozen=True)
class Quantized:
    """data: fp8, [rows, K], K contiguous. inverse_scale: float32, [] tensorwise or [rows, 1] rowwise; data times it is
    the matrix that was cast.
    """

    data: Tensor
    inverse_scale: Tensor

    def dequantized(self, rows: slice = slice(None)) -> Tensor:
        """float32, [rows, K]."""
        scale = self.inverse_scale[rows] if self.inverse_scale.dim() else self.inverse_scale
        return self.data[rows].float() * scale


def is_rowwise(precision: Precision) -> bool:
    """Whether each row has a scale of its own."""
    return precision.startswith("fp8-rowwise")


def is_fast(precision: Precision) -> bool:
    """Whether sums may stay in the tensor cores' own precision."""
    return precision.endswith("-fast")


def formats(role: Role, precision: Precision) -> tuple[torch.dtype, torch.dtype]:
    """fp8 formats of left and right. With a scale a tensor, the output's gradient (the left one) is e5m2."""
    gradient_left = role != "forward" and not is_rowwise(precision)
    return (E5M2 if gradient_left else E4M3, E4M3)


def operands(product: Product, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Left [M, K] and right [N, K], bf16, normally distributed: zeros and repeated values cost a GPU less power, and
    run at higher clocks than any training does.
    """
    shape = product.shape
    left, right = TRANSPOSED[product.role]
    return (
        _normal(shape.m, shape.k, left, device, generator),
        _normal(shape.n, shape.k, right, device, generator),
    )


def _normal(rows: int, inner: int, transposed: bool, device: torch.device, generator: torch.Generator) -> Tensor:
    size = (inner, rows) if transposed else (rows, inner)
    drawn = torch.randn(size, dtype=torch.bfloat16, device=device, generator=generator)
    return drawn.t() if transposed else drawn


def cast(matrix: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """matrix: bf16, [rows, K], in any layout. Returns what `Quantized` holds, as plain tensors, so that torch.compile
    takes this function whole.
    """
    largest = torch.finfo(dtype).max
    amax = matrix.abs().amax(dim=1, keepdim=True) if rowwise else matrix.abs().amax()
    scale = largest / amax.float().clamp(min=SMALLEST_AMAX)
    scaled = (matrix.float() * scale).clamp(-largest, largest).to(dtype)
    return scaled.contiguous(), scale.reciprocal()
