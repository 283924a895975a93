"""Operands, casts, the fp8 functions, and the proof that a product is right."""

import pytest
import torch

from fp8bench.numerics.gemm import multiply as kernels
from fp8bench.numerics.gemm.multiply import (
    CAST_LIMIT,
    E4M3,
    E5M2,
    Operand,
    cast_error,
    complaint,
    formats,
    gemm_error,
    limit,
    operands,
    quantize,
)
from fp8bench.schema.gemm import PAIRS, PRECISIONS, REFUSED_PAIR, Product, Shape

CPU = torch.device("cpu")
needs_public = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"),
    reason="this torch has no public scaled_mm for CPUs",
)
FUNCTIONS = [kernels.widened_mm, pytest.param(kernels.public_scaled_mm, marks=needs_public)]
SHAPE = Shape(m=48, n=64, k=96)


def drawn(role="forward"):
    return operands(Product(shape=SHAPE, role=role), CPU, torch.Generator().manual_seed(0))


def quantized(rowwise=False, role="forward", **named):
    to = formats(Product(shape=SHAPE, role=role, **named), "fp8-rowwise" if rowwise else "fp8-tensorwise")
    return [Operand(*quantize(matrix, dtype, rowwise)) for matrix, dtype in zip(drawn(role), to, strict=True)]


@pytest.mark.parametrize(
    ("role", "transposed", "tensorwise"),
    [
        ("forward", (False, False), (E4M3, E4M3)),
        ("input gradient", (False, True), (E5M2, E4M3)),
        ("weight gradient", (True, True), (E5M2, E4M3)),
    ],
)
def test_operands_lie_in_memory_as_training_has_them_and_gradients_are_e5m2_with_a_scale_a_tensor(
    role, transposed, tensorwise
):
    made = Product(shape=SHAPE, role=role)
    assert [formats(made, f"fp8-tensorwise{fast}") for fast in ("", "-fast")] == [tensorwise] * 2
    assert formats(made, "fp8-rowwise") == (E4M3, E4M3)
    left, right = drawn(role)
    assert (left.shape, right.shape) == ((48, 96), (64, 96))
    assert (not left.is_contiguous(), not right.is_contiguous()) == transposed
    assert left.dtype == right.dtype == torch.bfloat16


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_a_cast_keeps_the_matrix_and_lays_its_inner_dimension_contiguous(rowwise, dtype):
    matrix = drawn("weight gradient")[0]
    data, inverse = quantize(matrix, dtype, rowwise)
    assert (data.dtype, data.shape, data.is_contiguous()) == (dtype, matrix.shape, True)
    assert (inverse.dtype, inverse.shape) == (torch.float32, (48, 1) if rowwise else ())
    assert data.float().abs().max() == torch.finfo(dtype).max
    lost = cast_error(matrix, Operand(data, inverse), SHAPE)
    assert lost < (0.03 if dtype == E4M3 else 0.06) < CAST_LIMIT


@pytest.mark.parametrize("multiply", FUNCTIONS)
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("role", ["forward", "weight gradient"])
def test_every_function_multiplies_what_it_is_given(multiply, rowwise, role):
    left, right = quantized(rowwise, role)
    output = multiply(left, right, False)
    assert (output.shape, output.dtype) == ((48, 64), torch.bfloat16)
    assert gemm_error(output, left, right, SHAPE) < 0.003
    assert gemm_error(output, *(Operand(plain, torch.ones(())) for plain in drawn(role)), SHAPE) < 0.12


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair != REFUSED_PAIR])
@pytest.mark.parametrize("multiply", FUNCTIONS)
def test_named_formats_are_computed_within_the_limit(multiply, pair):
    left, right = quantized(formats=pair)
    assert gemm_error(multiply(left, right, False), left, right, SHAPE) < 0.003 < limit("fp8-tensorwise", SHAPE.k)


def test_a_check_in_pieces_finds_the_same(monkeypatch):
    left, right = quantized(rowwise=True)
    output = kernels.widened_mm(left, right, False)

    def errors():
        return gemm_error(output, left, right, SHAPE), cast_error(drawn()[0], left, SHAPE)

    whole = errors()
    monkeypatch.setattr("fp8bench.numerics.memory.CHECKED_ELEMENTS", 96 * 5)
    assert errors() == pytest.approx(whole)


@pytest.mark.parametrize(
    ("spoil", "least"),
    [
        (lambda left: Operand(left.data, left.inverse_scale * 1.02), 0.015),
        (lambda left: Operand(left.data[:, torch.arange(95, -1, -1)], left.inverse_scale), 1.0),
        (lambda left: Operand(torch.cat((left.data[1:], left.data[:1])), left.inverse_scale), 1.0),
    ],
    ids=["scale", "order of the inner dimension", "order of rows"],
)
def test_a_wrong_product_is_told(spoil, least):
    left, right = quantized()
    error = gemm_error(kernels.widened_mm(spoil(left), right, False), left, right, SHAPE)
    assert error > least
    assert "the GEMM is off by" in complaint(error, limit("fp8-tensorwise", 96), "the GEMM")


def test_what_is_not_finite_is_told():
    left, right = quantized()
    output = kernels.widened_mm(left, right, False)
    output[0, 0] = torch.nan
    assert gemm_error(output, left, right, SHAPE) is None
    assert complaint(None, 0.01, "the GEMM") == "the GEMM is not finite"
    assert {kind: kernel.emulated for kind, kernel in kernels.KERNELS.items()} == {"cpu": True, "cuda": False}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_only_fast_accumulation_may_err_more_over_a_longer_sum(precision):
    assert limit(precision, 1280) == 0.01
    assert limit(precision, 12608) == (pytest.approx(0.0308, abs=1e-4) if precision.endswith("-fast") else 0.01)
