"""GEMMs in bf16 and fp8: operands, their casts, the function that multiplies them, and the check of the output.

Both operands have the inner dimension last: left [M, K], right [N, K]; the output is left right^T, in bf16. fp8 needs K
contiguous in both, so a cast also copies a transposed one. A cast is dynamic scaling in torchao's operations.

A GEMM is checked against the exact sums over the same fp8 operands, |output - exact| / |exact|, Frobenius. Rounding the
output to bf16 adds 0.002. Fast accumulation keeps about 14 bits of a sum on compute capability 9 (DeepSeek-V3 technical
report, 2024, section 3.3.2), so its limit grows with K. A wrong scale or a missing tile errs far more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fp8bench.numerics.memory import checked_rows
from fp8bench.schema.gemm import Fp8Format, Precision, Product, Shape

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
FP8: dict[Fp8Format, torch.dtype] = {"e4m3": E4M3, "e5m2": E5M2}
SMALLEST_AMAX = 1e-12
"""torchao's lower limit of an amax, which gives a tensor of zeros a finite scale."""

LIMIT = 1e-2
CAST_LIMIT = 0.1
FAST_EXACT_UP_TO = 4096


@dataclass(frozen=True)
class Operand:
    """A matrix to multiply. data: bf16, or fp8 with K contiguous; [rows, K]. inverse_scale: float32, [] tensorwise or
    [rows, 1] rowwise. data times inverse_scale is the matrix that was cast.
    """

    data: Tensor
    inverse_scale: Tensor

    def scale_of(self, rows: slice) -> Tensor:
        return self.inverse_scale.expand(len(self.data), 1)[rows]

    def dequantized(self, rows: slice = slice(None)) -> Tensor:
        """Return these rows of the matrix in float32, [rows, K]."""
        return self.data[rows].float() * self.scale_of(rows)


@dataclass(frozen=True)
class Kernel:
    """Multiplies in fp8: (left, right, fast accumulation) -> [M, N] in bf16. name: for the record. emulated: whether it
    runs without fp8 units.
    """

    name: str
    multiply: Callable[[Operand, Operand, bool], Tensor]
    emulated: bool


def formats(product: Product, precision: Precision) -> tuple[torch.dtype, torch.dtype]:
    """Return the fp8 formats of left and right: those that the product names, otherwise those of training, where the
    output's gradient (the left operand) is e5m2 if there is one scale per tensor.
    """
    if product.formats is not None:
        left, right = product.formats
        return FP8[left], FP8[right]
    gradient_left = product.role != "forward" and not precision.startswith("fp8-rowwise")
    return (E5M2 if gradient_left else E4M3, E4M3)


def operands(product: Product, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return left [M, K] and right [N, K] in bf16, normally distributed. With zeros and repeated values, a GPU draws
    less power and runs at higher clocks than in any training.
    """

    def normal(rows: int, transposed: bool) -> Tensor:
        shape = (product.shape.k, rows) if transposed else (rows, product.shape.k)
        drawn = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)
        return drawn.t() if transposed else drawn

    left = normal(product.shape.m, transposed=product.role == "weight gradient")
    return left, normal(product.shape.n, transposed=product.role != "forward")


def quantize(matrix: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """Return the fields of `Operand` as plain tensors, so that torch.compile can compile this function completely.
    matrix: bf16, [rows, K], in any layout.
    """
    largest = torch.finfo(dtype).max
    amax = matrix.abs().amax(dim=1, keepdim=True) if rowwise else matrix.abs().amax()
    scale = largest / amax.float().clamp(min=SMALLEST_AMAX)
    scaled = (matrix.float() * scale).clamp(-largest, largest).to(dtype)
    return scaled.contiguous(), scale.reciprocal()


def public_scaled_mm(left: Operand, right: Operand, fast: bool) -> Tensor:
    """Multiply by torch.nn.functional.scaled_mm, which takes a row-major left and a column-major right matrix, and
    float32 inverse scales: one element, or [M, 1] and [1, N].
    """
    types = functional.ScalingType
    scaling = types.RowWise if left.inverse_scale.dim() else types.TensorWise
    scales = left.inverse_scale, scaling, right.inverse_scale.t(), scaling
    return functional.scaled_mm(left.data, right.data.t(), *scales, output_dtype=torch.bfloat16, use_fast_accum=fast)


def widened_mm(left: Operand, right: Operand, fast: bool) -> Tensor:
    """Multiply without fp8 units: the same numbers, in float32."""
    return torch.mm(left.dequantized(), right.dequantized().t()).bfloat16()


def bf16_mm(left: Operand, right: Operand, fast: bool) -> Tensor:
    return torch.mm(left.data, right.data.t())


KERNELS = {
    "cpu": Kernel("torch.mm of float32", widened_mm, emulated=True),
    "cuda": Kernel("torch.nn.functional.scaled_mm", public_scaled_mm, emulated=False),
}
"""By the type of the device. If fp8 does not run on a GPU, the error is the reason in the record."""


def limit(precision: Precision, inner: int) -> float:
    """Return the error up to which a GEMM counts as correct. inner: K."""
    return LIMIT * max(1.0, inner / FAST_EXACT_UP_TO) if precision.endswith("-fast") else LIMIT


def gemm_error(output: Tensor, left: Operand, right: Operand, shape: Shape) -> float | None:
    """Return the error of the output, [M, N], against the exact sums over these operands; None if it is not finite."""
    exact_type = torch.float64 if output.device.type == "cpu" else torch.float32
    right_exact = right.data.to(exact_type)

    def exact(rows: slice) -> Tensor:
        sums = torch.mm(left.data[rows].to(exact_type), right_exact.t())
        sums *= left.scale_of(rows)
        return sums.mul_(right.inverse_scale.t())

    return _relative_error(shape.m, shape, exact, output.__getitem__)


def cast_error(matrix: Tensor, cast: Operand, shape: Shape) -> float | None:
    """Return the error of a cast against the matrix, [rows, K]; None if it is not finite."""
    return _relative_error(matrix.shape[0], shape, lambda rows: matrix[rows].float(), cast.dequantized)


def _relative_error(
    count: int, shape: Shape, exact: Callable[[slice], Tensor], found: Callable[[slice], Tensor]
) -> float | None:
    wrong = whole = 0.0
    norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
    step = checked_rows(shape)
    for first in range(0, count, step):
        rows = slice(first, first + step)
        expected = exact(rows)
        whole += float(norm(expected)) ** 2
        wrong += float(norm(expected.sub_(found(rows)))) ** 2
    error = math.sqrt(wrong / whole) if whole > 0 else math.inf
    return error if math.isfinite(error) else None


def complaint(error: float | None, allowed: float, what: str) -> str | None:
    """Return why a result is not correct, as a clause; None if it is."""
    if error is None:
        return f"{what} is not finite"
    return f"{what} is off by {error:.2g}, more than {allowed:.2g}" if error > allowed else None
