"""Pairs of formats on a GPU's fp8 units: which it takes, with which output and bias, and that two e5m2 operands are
refused.
"""

from itertools import product

import pytest
from gpu.this_gpu import needs_fp8, needs_gpu

from fp8bench.numerics.gemm.bench import Bench
from fp8bench.schema.gemm import OUTPUTS, PAIRS, REFUSED_PAIR, Product, Shape

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(600)]

SHAPE = Shape(m=512, n=1024, k=2048)
TAKEN = [pair for pair in PAIRS if pair != REFUSED_PAIR]


@pytest.fixture(scope="module")
def bench():
    return Bench.on("cuda", seconds=0.01)


def timed(bench, precision="fp8-tensorwise", **changes):
    (_, fp8) = bench.measure(Product(shape=SHAPE, **changes), ("bf16", precision)).timings
    return fp8


@needs_fp8
@pytest.mark.parametrize(("pair", "output"), list(product(TAKEN, OUTPUTS)))
def test_every_pair_and_output_is_right(bench, pair, output):
    fp8 = timed(bench, formats=pair, output=output)
    assert (fp8.status, fp8.reason, fp8.emulated) == ("ok", None, False)
    assert fp8.error < {"bf16": 0.003, "fp32": 0.003, "e4m3": 0.03}[output]


@needs_fp8
@pytest.mark.parametrize(("pair", "output"), list(product(TAKEN, ("bf16", "e4m3"))))
def test_a_bias_is_added(bench, pair, output):
    fp8 = timed(bench, formats=pair, output=output, bias=True)
    assert (fp8.status, fp8.reason) == ("ok", None)


@needs_fp8
def test_two_e5m2_operands_are_refused_by_the_library(bench):
    fp8 = timed(bench, formats=REFUSED_PAIR)
    assert (fp8.status, fp8.emulated) == ("unsupported", False)
    assert "e5m2" in fp8.reason


@needs_fp8
def test_a_bias_beside_an_fp32_output_is_refused_or_right(bench):
    fp8 = timed(bench, formats=("e4m3", "e4m3"), output="fp32", bias=True)
    assert fp8.status in ("ok", "unsupported"), fp8.reason
