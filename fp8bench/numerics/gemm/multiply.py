"""fp8 GEMMs: their operands, the cast that makes these, the function that multiplies them, and the proof of the output.

Both operands are written with the inner dimension last: left [M, K], right [N, K], and the output is left right^T.
Training has X [T, I], W [O, I] and dY [T, O] in memory, row by row, so that

  role              left, right          of these, transposed in memory
  forward           X,    W              none
  input gradient    dY,   W^T            right
  weight gradient   dY^T, X^T            both

bf16 GEMMs take any of these layouts at full speed. fp8 GEMMs, up to compute capability 9 and in torch's kernels later
too, need the inner dimension contiguous in both, so that a cast also copies what lies transposed. That is part of the
cost of casting.

A cast is dynamic scaling: scale = largest fp8 value / amax, in float32; q = clamp(x * scale) in fp8; and the output is
multiplied by the inverse scales. It is written in the operations of torchao's Float8Linear (amax, scale, multiply,
clamp, convert), each of which reads and writes the whole matrix when it is not compiled. A kernel that fuses them
costs less; `delayed` scaling needs no pass for the amax. Every GEMM casts both its operands here, as torchao does;
Transformer Engine casts a tensor once for the two GEMMs that use it.

torch 2.10 made `torch.nn.functional.scaled_mm` public, with its `ScalingType`; before, and where it does not know the
device, there is `torch._scaled_mm`, which guesses the scaling from the scales' shapes. Both take a row-major left and a
column-major right matrix, and float32 inverse scales: one element each tensorwise, [M, 1] and [1, N] rowwise. The
output is bf16. torch uses no fp8 units of a CPU: its kernel widens the operands first, or where it has none they are
widened here. That is marked as emulated, and its time means nothing for fp8.

A GEMM is checked before it is timed. The cast's own error, 2 to 3 % (e4m3) or 5 % (e5m2) of a normal matrix, is the
subject of `worker.parity` and `fp8bench numerics`. The GEMM must add next to nothing, so it is compared with the exact
sums over the same fp8 operands. Those are computed in float32, and scaled afterwards: fp8 and bf16 values and their
products are exact there, and in tf32 too, whatever torch is set to; on a CPU in float64. Errors are relative, in the
Frobenius norm: |output - exact| / |exact|. Rounding the output to bf16 makes 0.002.

Fast accumulation keeps about 14 bits of a running sum on compute capability 9 (DeepSeek-V3 technical report, 2024,
section 3.3.2, which saw largest errors near 2 % at K = 4096), and its error grows with the inner dimension. So its
limit is the same up to K = FAST_EXACT_UP_TO and proportionally larger beyond: at 12608, 3 %. A wrong scale, a
transposed operand or a missing tile make far larger errors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fp8bench.numerics.memory import checked_rows
from fp8bench.schema.gemm import Precision, Product, Role, Shape

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
SMALLEST_AMAX = 1e-12
"""torchao's: a tensor of zeros has a finite scale."""

TRANSPOSED: dict[Role, tuple[bool, bool]] = {
    "forward": (False, False),
    "input gradient": (False, True),
    "weight gradient": (True, True),
}
LIMIT = 1e-2
CAST_LIMIT = 0.1
FAST_EXACT_UP_TO = 4096


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


Multiply = Callable[[Quantized, Quantized, bool], Tensor]
"""(left, right, fast accumulation) -> bf16, [M, N]."""


@dataclass(frozen=True)
class Kernel:
    """name: for the record. emulated: without fp8 units."""

    name: str
    multiply: Multiply
    emulated: bool


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


def quantize(matrix: Tensor, dtype: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """matrix: bf16, [rows, K], in any layout. Returns what `Quantized` holds, as plain tensors, so that torch.compile
    takes this function whole.
    """
    largest = torch.finfo(dtype).max
    amax = matrix.abs().amax(dim=1, keepdim=True) if rowwise else matrix.abs().amax()
    scale = largest / amax.float().clamp(min=SMALLEST_AMAX)
    scaled = (matrix.float() * scale).clamp(-largest, largest).to(dtype)
    return scaled.contiguous(), scale.reciprocal()


def find_kernel(device: torch.device) -> Kernel:
    """The first that this torch has for the device. For a CPU each is tried on a small GEMM; for a GPU none is: the
    first one's error where fp8 does not run is the reason in the record.
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
            for left in (E4M3, E5M2):
                multiply(Quantized(ones.to(left), scale), Quantized(ones.to(E4M3), scale), False)
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


def public_scaled_mm(left: Quantized, right: Quantized, fast: bool) -> Tensor:
    """torch.nn.functional.scaled_mm (torch 2.10 and later)."""
    types = functional.ScalingType
    scaling = types.RowWise if left.inverse_scale.dim() else types.TensorWise
    output: Tensor = functional.scaled_mm(
        left.data,
        right.data.t(),
        left.inverse_scale,
        scaling,
        right.inverse_scale.t(),
        scaling,
        output_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return output


def private_scaled_mm(left: Quantized, right: Quantized, fast: bool) -> Tensor:
    """torch._scaled_mm."""
    output: Tensor = torch._scaled_mm(
        left.data,
        right.data.t(),
        scale_a=left.inverse_scale,
        scale_b=right.inverse_scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return output


def widened_mm(left: Quantized, right: Quantized, fast: bool) -> Tensor:
    """Without fp8 units: the same numbers, in float32."""
    return torch.mm(left.dequantized(), right.dequantized().t()).to(torch.bfloat16)


def limit(precision: Precision, inner: int) -> float:
    """The error up to which a GEMM counts as correct. inner: K."""
    return LIMIT * max(1.0, inner / FAST_EXACT_UP_TO) if is_fast(precision) else LIMIT


def gemm_error(output: Tensor, left: Tensor | Quantized, right: Tensor | Quantized, shape: Shape) -> float | None:
    """Of the output, [M, N], against the exact sums over these operands; None where it is not finite."""
    exact_type = torch.float64 if output.device.type == "cpu" else torch.float32
    left_values, left_scale = _parts(left)
    right_values, right_scale = _parts(right)
    right_exact = right_values.to(exact_type)

    def exact(rows: slice) -> Tensor:
        sums = torch.mm(left_values[rows].to(exact_type), right_exact.t())
        sums *= left_scale[rows] if left_scale.dim() else left_scale
        return sums.mul_(right_scale.t())

    return _relative_error(shape.m, shape, exact, lambda rows: output[rows])


def cast_error(matrix: Tensor, cast: Quantized, shape: Shape) -> float | None:
    """Of a cast against the matrix, [rows, K]; None where it is not finite."""
    return _relative_error(matrix.shape[0], shape, lambda rows: matrix[rows].float(), cast.dequantized)


def _relative_error(
    count: int, shape: Shape, exact: Callable[[slice], Tensor], found: Callable[[slice], Tensor]
) -> float | None:
    """Of `count` rows, some at a time. exact: gives new tensors, which are overwritten."""
    wrong = whole = 0.0
    step = checked_rows(shape)
    for first in range(0, count, step):
        rows = slice(first, first + step)
        expected = exact(rows)
        whole += _squares(expected)
        wrong += _squares(expected.sub_(found(rows)))
    error = math.sqrt(wrong / whole) if whole > 0 else math.inf
    return error if math.isfinite(error) else None


def complaint(error: float | None, allowed: float, what: str) -> str | None:
    """Why it is not correct, as a clause; None: it is."""
    if error is None:
        return f"{what} is not finite"
    return f"{what} is off by {error:.2g}, more than {allowed:.2g}" if error > allowed else None


def _parts(matrix: Tensor | Quantized) -> tuple[Tensor, Tensor]:
    """Its values, and the scale to multiply them by."""
    if isinstance(matrix, Quantized):
        return matrix.data, matrix.inverse_scale
    return matrix, torch.ones((), device=matrix.device)


def _squares(matrix: Tensor) -> float:
    return float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) ** 2
