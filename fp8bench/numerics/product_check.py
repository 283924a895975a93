"""Whether a product is right, asked before it is timed: a wrong one is never shown as if it were fast.

Two things are held apart. What the cast loses is the format's: 2 to 3 % (e4m3) or 5 % (e5m2) of a normal matrix, and
`worker.parity` and `fp8bench numerics` are about that. What the product adds to it must be next to nothing, so it is
compared with the exact sums over the same fp8 operands. Those are computed in float32, and scaled afterwards: fp8 and
bf16 values are exact there, and in tf32 too, whatever torch is set to, and so are their products; on a CPU in float64.

The error is relative, in the Frobenius norm: |product - exact| / |exact|. Rounding the output to bf16 makes 0.002.

Fast accumulation keeps about 14 bits of a running sum on compute capability 9 (DeepSeek-V3 technical report, 2024,
section 3.3.2, which saw largest errors near 2 % at K = 4096), and what is cut off adds up over the inner dimension.
So it is granted the limit up to K = FAST_EXACT_UP_TO and proportionally more beyond: at 12608, 3 %. A wrong scale, a
transposed operand or a missing tile make far more.
"""

import math

import torch
from torch import Tensor

from fp8bench.numerics.memory import checked_rows
from fp8bench.numerics.product_operands import Quantized, is_fast
from fp8bench.schema.gemm import Precision, Shape

LIMIT = 1e-2
CAST_LIMIT = 0.1
FAST_EXACT_UP_TO = 4096


def limit(precision: Precision, inner: int) -> float:
    """The error up to which a product counts as right. inner: K."""
    return LIMIT * max(1.0, inner / FAST_EXACT_UP_TO) if is_fast(precision) else LIMIT


def product_error(output: Tensor, left: Tensor | Quantized, right: Tensor | Quantized, shape: Shape) -> float | None:
    """Of the output, [M, N], against the exact product of these operands; None where it is not finite."""
    exact_type = torch.float64 if output.device.type == "cpu" else torch.float32
    left_values, left_scale = _parts(left)
    right_values, right_scale = _parts(right)
    right_exact = right_values.to(exact_type)
    wrong = whole = 0.0
    step = checked_rows(shape)
    for first in range(0, shape.m, step):
        rows = slice(first, first + step)
        exact = torch.mm(left_values[rows].to(exact_type), right_exact.t())
        exact *= left_scale[rows] if left_scale.dim() else left_scale
        exact *= right_scale.t()
        whole += _squares(exact)
        wrong += _squares(exact.sub_(output[rows]))
    return _relative(wrong, whole)


def cast_error(matrix: Tensor, cast: Quantized, shape: Shape) -> float | None:
    """Of a cast against the matrix, [rows, K]; None where it is not finite."""
    wrong = whole = 0.0
    step = checked_rows(shape)
    for first in range(0, matrix.shape[0], step):
        rows = slice(first, first + step)
        exact = matrix[rows].float()
        whole += _squares(exact)
        wrong += _squares(exact.sub_(cast.dequantized(rows)))
    return _relative(wrong, whole)


def complaint(error: float | None, allowed: float, what: str) -> str | None:
    """Why it is not right, as a clause; None: it is."""
    if error is None:
        return f"{what} is not finite"
    return f"{what} is off by {error:.2g}, more than {allowed:.2g}" if error > allowed else None


def _parts(matrix: Tensor | Quantized) -> tuple[Tensor, Tensor]:
    """Its values and the scale that they are to be multiplied with."""
    if isinstance(matrix, Quantized):
        return matrix.data, matrix.inverse_scale
    return matrix, torch.ones((), device=matrix.device)


def _squares(matrix: Tensor) -> float:
    return float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) ** 2


def _relative(wrong: float, whole: float) -> float | None:
    error = math.sqrt(wrong / whole) if whole > 0 else math.inf
    return error if math.isfinite(error) else None
