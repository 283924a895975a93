"""GEMMs in named formats: each pair, output and bias is computed, emulated on this CPU, and checked."""

from itertools import product

import pytest
import torch
from numerics.gemm.of_cpus import public

from fp8bench.numerics.gemm.bench import Bench
from fp8bench.numerics.gemm.multiply import (
    E4M3,
    Epilogue,
    Quantized,
    bf16_mm,
    epilogue,
    formats,
    gemm_error,
    limit,
    operands,
    output_size,
    private_scaled_mm,
    quantize,
    widened_mm,
)
from fp8bench.schema.gemm import OUTPUTS, PAIRS, REFUSED_PAIR, Product, Shape

CPU = torch.device("cpu")
SHAPE = Shape(m=48, n=64, k=256)
TAKEN = [pair for pair in PAIRS if pair != REFUSED_PAIR]

pytestmark = pytest.mark.usefixtures("one_thread")


def made(one, precision="fp8-tensorwise"):
    """Operands in the product's formats, and its epilogue."""
    by = torch.Generator().manual_seed(0)
    pair = operands(one, CPU, by)
    quantized = [Quantized(*quantize(m, f, False)) for m, f in zip(pair, formats(one, precision), strict=True)]
    return *quantized, epilogue(one, CPU, by)


@pytest.mark.parametrize("multiply", [public, private_scaled_mm, widened_mm])
@pytest.mark.parametrize(("pair", "output", "bias"), list(product(TAKEN, OUTPUTS, (False, True))))
def test_every_combination_is_computed_within_its_limit(multiply, pair, output, bias):
    one = Product(shape=SHAPE, formats=pair, output=output, bias=bias)
    left, right, then = made(one)
    found = multiply(left, right, False, then)
    assert found.dtype == {"bf16": torch.bfloat16, "fp32": torch.float32, "e4m3": E4M3}[output]
    error = gemm_error(found, left, right, SHAPE, then.bias)
    assert error < limit("fp8-tensorwise", SHAPE.k, output)
    assert error < {"bf16": 0.003, "fp32": 1e-5, "e4m3": 0.03}[output]


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_bias_that_is_forgotten_is_told(output):
    one = Product(shape=SHAPE, formats=TAKEN[0], output=output, bias=True)
    left, right, then = made(one)
    without = widened_mm(left, right, False, Epilogue(then.dtype))
    error = gemm_error(without, left, right, SHAPE, then.bias)
    assert error > 0.5 > limit("fp8-tensorwise-fast", SHAPE.k, output)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inner", [64, 1280, 12608])
def test_sums_fit_an_e4m3_output_and_use_its_range(bias, inner):
    one = Product(shape=Shape(m=64, n=64, k=inner), formats=TAKEN[0], output="e4m3", bias=bias)
    left, right, then = made(one)
    sums = widened_mm(left, right, False, Epilogue(torch.float32, then.bias))
    assert 50 < sums.abs().max() <= 448
    assert sums.std() == pytest.approx(output_size(one) * (2**0.5 if bias else 1), rel=0.3)


def test_the_reference_adds_the_bias_too():
    one = Product(shape=SHAPE, formats=TAKEN[0], bias=True, output="e4m3")
    left, right = operands(one, CPU, torch.Generator().manual_seed(0))
    then = epilogue(one, CPU, torch.Generator().manual_seed(0))
    found = bf16_mm(left, right, False, then)
    assert found.dtype == torch.bfloat16
    assert gemm_error(found, left, right, SHAPE, then.bias) < limit("bf16", SHAPE.k, "e4m3") == 0.01


def test_two_e5m2_operands_are_refused_as_a_gpu_refuses_them():
    found = Bench.on("cpu", seconds=1e-4).measure(Product(shape=SHAPE, formats=REFUSED_PAIR), ("bf16", "fp8-rowwise"))
    bf16, fp8 = found.timings
    assert bf16.status == "ok"
    assert (fp8.status, fp8.reason) == ("unsupported", "no GPU takes it: cuBLASLt has no GEMM of two e5m2 matrices")


def test_named_formats_are_measured_without_casts():
    one = Product(shape=SHAPE, formats=("e5m2", "e4m3"), bias=True, output="fp32")
    found = Bench.on("cpu", seconds=1e-4).measure(one, ("bf16", "fp8-tensorwise"))
    assert [(t.precision, t.casts, t.status) for t in found.timings] == [
        ("bf16", "none", "ok"),
        ("fp8-tensorwise", "none", "ok"),
    ]
