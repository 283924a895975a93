"""How far losses may be apart."""

import math

import pytest

from fp8bench.worker.execution.proof import loss_error


def test_the_worst_step_counts():
    assert loss_error([7.0, 6.9, 6.8], [7.0, 6.2, 6.8]) == pytest.approx(0.1)


def test_a_loss_that_falls_fast_is_no_measure_of_its_own_error():
    assert loss_error([2.0, 1.0, 0.1], [2.0, 1.02, 0.12]) == pytest.approx(0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("step", [0, 1])
def test_a_loss_that_is_not_finite_passes_no_bound(bad, step):
    executed = [1.0, 1.0]
    executed[step] = bad
    assert math.isnan(loss_error([1.0, 1.0], executed))
