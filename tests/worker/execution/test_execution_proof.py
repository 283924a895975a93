"""How far losses may be apart."""

import math

import pytest

from fp8bench.worker.execution.proof import loss_error


def test_the_worst_step_counts():
    assert loss_error([7.0, 6.9, 6.8], [7.0, 6.2, 6.8], 6.0) == pytest.approx(0.1)


def test_a_loss_that_falls_fast_is_no_measure_of_its_own_error():
    assert loss_error([2.0, 1.0, 0.1], [2.0, 1.02, 0.12], 1.0) == pytest.approx(0.01)


def test_a_batch_that_is_learned_by_heart_is_held_to_the_loss_that_the_tolerance_is_a_share_of():
    assert loss_error([0.3, 0.1, 0.05], [0.3, 0.12, 0.05], 6.9) == pytest.approx(0.02 / 6.9)
    assert loss_error([6.8, 6.7, 6.6], [6.8, 6.7, 6.2], 6.9) > 0.05, "a fresh model's losses are as they were"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("step", [0, 1])
def test_a_loss_that_is_not_finite_passes_no_bound(bad, step):
    executed = [1.0, 1.0]
    executed[step] = bad
    assert math.isnan(loss_error([1.0, 1.0], executed, 1.0))
