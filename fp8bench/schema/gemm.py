"""GEMMs (general matrix multiplications), as `fp8bench gemm` measures them.

A GEMM is (M, N, K): rows and columns of the output, and the inner dimension that is summed over. A linear layer makes
three per step, with T rows in (batch x tokens), I features in and O out: Y = X W^T is (T, O, I), dX = dY W is
(T, I, O), dW = dY^T X is (O, I, T). In fp8 they differ in the operands that are transposed first, and in formats.
"""

from itertools import product
from typing import Any, Literal, get_args

from pydantic import Field, PositiveFloat, PositiveInt

from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, optional

Role = Literal["forward", "input gradient", "weight gradient"]
Precision = Literal["bf16", "fp8-tensorwise", "fp8-tensorwise-fast", "fp8-rowwise", "fp8-rowwise-fast"]
"""tensorwise: one scale per operand. rowwise: one scale per row of the left and per column of the right operand.
`-fast`: sums are accumulated in the tensor cores' own precision throughout, which is quicker and less exact.
"""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Casts = Literal["none", "compiled", "eager"]
"""What is timed with the GEMM. none: operands are already in its format. eager: separate torch operations cast both
operands from bf16. compiled: torch.compile's kernels cast them.
"""

CASTS: tuple[Casts, ...] = get_args(Casts)
Arithmetic = Literal["bf16", "fp8"]
Fp8Format = Literal["e4m3", "e5m2"]
Pair = tuple[Fp8Format, Fp8Format]
Output = Literal["bf16", "fp32", "e4m3"]

ALIGNMENT = 16
"""Every dimension of an fp8 GEMM is a multiple of this number: cuBLASLt and CUTLASS read operands in pieces of 16
bytes, and an fp8 value is one byte.
"""

PAIRS: tuple[Pair, ...] = tuple(product(get_args(Fp8Format), repeat=2))
REFUSED_PAIR: Pair = ("e5m2", "e5m2")
"""cuBLASLt has no GEMM of two e5m2 matrices, and torch refuses it (as of CUDA 13.2, torch 2.15)."""


def padded(size: int, multiple: int = ALIGNMENT) -> int:
    """Return the smallest multiple that is not less than `size`."""
    return -(-size // multiple) * multiple


class Shape(Frozen):
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt

    @classmethod
    def cube(cls, size: int) -> "Shape":
        return cls(m=size, n=size, k=size)

    @property
    def flops(self) -> int:
        """The floating-point operations of the GEMM; a multiply-add counts as two."""
        return 2 * self.m * self.n * self.k

    def tflops(self, time_s: float) -> float:
        return self.flops / time_s / 1e12

    @property
    def is_cube(self) -> bool:
        return self.m == self.n == self.k

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


class Product(Frozen):
    shape: Shape
    role: Role = "forward"
    layers: tuple[str, ...] = Field(default=(), description="their layers' names, numbers folded into `*`")
    calls_per_step: PositiveInt | None = optional("null: of no model")
    stays_bf16: str | None = optional("why fp8 modes leave it alone; null: they do not")
    formats: Pair | None = optional("of left and right in fp8; null: those of training")
    bias: bool = Field(default=False, description="added to each row of the output; in older records")
    output: Output = Field(default="bf16", description="of the fp8 GEMM; others than bf16 in older records")

    @property
    def label(self) -> str:
        """`blocks.*.mlp.fc1 forward`; `e4m3 x e5m2, bias, to fp32` if formats are named; the shape if of no model."""
        if self.layers:
            names = (f"layer {layer}" if set(layer) <= set("*.") else layer for layer in self.layers)
            return f"{', '.join(names)} {self.role}"
        if self.formats is None:
            return str(self.shape)
        output = f", to {self.output}" if self.output != "bf16" else ""
        return f"{' x '.join(self.formats)}{', bias' if self.bias else ''}{output}"


class Timing(Frozen):
    precision: Precision
    casts: Casts = "none"
    status: Literal["ok", "invalid", "unsupported"] = "ok"
    reason: str | None = optional("of another status than ok")
    emulated: bool = Field(default=False, description="computed without fp8 units: the time is not that of fp8")
    error: float | None = optional("relative, against exact sums; null: not finite", ge=0)
    time_s: PositiveFloat | None = optional("mean over the rounds of their medians")
    time_ci_s: tuple[float, float] | None = optional("95 % over this process's rounds; null: one")
    repetitions: int = Field(default=0, ge=0, description="in all rounds together")
    round_sizes: tuple[PositiveInt, ...] = Field(default=(), description="of samples_s; empty: there was one round")
    samples_s: tuple[PositiveFloat, ...] = ()

    def model_post_init(self, _context: Any) -> None:
        if (self.status == "ok") != (self.time_s is not None) or (self.status == "ok") != (self.reason is None):
            raise ValueError("a timing with status ok has a time, and one with another status a reason instead")

    @property
    def arithmetic(self) -> Arithmetic:
        return "bf16" if self.precision == "bf16" else "fp8"

    @property
    def on_units_s(self) -> float | None:
        """The time; None if it is emulated, and so says nothing of fp8 units."""
        return None if self.emulated else self.time_s


class ProductTimings(Frozen):
    product: Product
    timings: tuple[Timing, ...]

    def find(self, precision: Precision, casts: Casts = "none") -> Timing | None:
        """Return the timing of a precision whose status is `ok`, or None."""
        return next((t for t in self.timings if (t.precision, t.casts, t.status) == (precision, casts, "ok")), None)


class Ceiling(Frozen):
    """The best of a few large square GEMMs in one arithmetic, measured in the same run before the power limit takes
    effect. A GEMM whose shape suits the GPU better may be faster.
    """

    arithmetic: Arithmetic
    tflops: PositiveFloat
    precision: Precision
    size: PositiveInt = Field(description="M = N = K")


class Gain(Frozen):
    """The time of a step if its fp8 GEMMs run in fp8. speedup: relative to the step (or the GEMMs) in bf16."""

    casts: Casts
    products_s: PositiveFloat = Field(description="the converted layers' GEMMs, seconds a step")
    speedup: PositiveFloat


class ModeGain(Frozen):
    """The measured gain of a complete mode, on the same instance and with the same batch."""

    label: str
    compiled: bool
    execution: Variant | None = optional("how its steps were executed; null: an older record")
    step_time_s: PositiveFloat
    rounds: PositiveInt
    speedup: PositiveFloat
    held_back_by: str | None = optional("host or loader, with the figure; null: by neither")


class StepBound(Frozen):
    """The most that fp8 can gain on a complete step. Times are in seconds per step."""

    baseline_run_id: str | None = None
    compiled: bool | None = None
    execution: Variant | None = optional("of the baseline; null: none, or an older record")
    rounds: PositiveInt | None = None
    step_time_s: PositiveFloat | None = optional("null: no baseline's record, so `at_most` is about the GEMMs alone")
    profiled_products_s: float | None = optional("all GEMMs in the baseline's profile")
    bf16_products_s: PositiveFloat = Field(description="of the converted layers, as timed here")
    other_products_s: float = Field(ge=0, description="of the layers that stay bf16, as timed here")
    left_in_bf16: int = Field(default=0, ge=0, description="GEMMs without a valid fp8 time, counted as bf16")
    at_most: tuple[Gain, ...] = Field(description="one for each kind of casts that was timed")
    modes: tuple[ModeGain, ...] = ()
    reason: str | None = optional("why `at_most` is empty")
