"""How far losses and gradients may be apart."""

import math

import pytest

from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.worker.execution.proof import Errors, complaints, loss_error


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


@pytest.mark.parametrize(
    ("by_adam", "errors", "told"),
    [
        (False, {"gradient_error": 0.105}, ["its gradients differ"]),
        (True, {"gradient_error": 0.105, "first_gradient_error": 0.02}, []),
        (True, {"gradient_error": 0.105, "first_gradient_error": 0.105}, ["its gradients of the first step differ"]),
        (True, {"gradient_error": 1.2, "first_gradient_error": 0.02}, ["its gradients differ"]),
        (True, {"gradient_error": 0.02, "first_gradient_error": math.nan}, ["its gradients of the first step differ"]),
    ],
)
def test_gradients_after_changes_by_adam_are_held_to_the_bound_on_these_and_the_first_to_that_of_rounding(
    by_adam, errors, told
):
    found = complaints(Errors(errors, 0.0, None, by_adam=by_adam), BF16_TOLERANCE)
    assert [one.partition(" by ")[0] for one in found] == told
