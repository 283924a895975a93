"""One timing of several rounds' timings."""

import pytest

from fp8bench.numerics.product_rounds import pooled
from fp8bench.schema.gemm import Timing


def ok(time_s, error=0.001, count=24):
    samples = tuple(time_s * (1 + 1e-4 * (number % 5 - 2)) for number in range(count))
    return Timing(precision="bf16", time_s=time_s, error=error, repetitions=count, samples_s=samples)


def test_the_rounds_medians_are_averaged_and_their_samples_kept_in_order():
    rounds = [ok(1.00e-3), ok(1.02e-3, error=0.002, count=30), ok(1.04e-3)]
    found = pooled(rounds)
    assert found.time_s == pytest.approx(1.02e-3)
    assert found.time_ci_s[0] < 1.00e-3
    assert found.time_ci_s[1] > 1.04e-3
    assert (found.repetitions, found.round_sizes, found.error) == (78, (24, 30, 24), 0.002)
    assert found.samples_s == (*rounds[0].samples_s, *rounds[1].samples_s, *rounds[2].samples_s)


def test_one_round_is_the_answer_itself():
    assert pooled([ok(1e-3)]) == ok(1e-3)


def test_a_round_that_is_not_ok_is_the_answer():
    wrong = Timing(precision="bf16", status="invalid", reason="the product is off by 1")
    assert pooled([ok(1e-3), wrong]) == wrong
