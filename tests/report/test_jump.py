"""How a way of scaling answered to the jump, in numbers."""

import pytest
from report.made_numerics import DOWN_AT, STEPS, history, trace

from fp8bench.kinds.numerics.compared import response_to


@pytest.mark.parametrize(("back", "steps"), [(None, None), (DOWN_AT + 3, 3), (DOWN_AT + 1, 1)])
def test_a_delayed_scale_saturates_once_and_comes_back_when_it_has_forgotten(back, steps):
    found = response_to(trace(back=back), history())
    assert (found.steps_that_saturate, found.worst_share, found.worst_error) == (1, 0.96, 0.97)
    assert (found.steps_to_come_back, found.steps_after) == (steps, STEPS - DOWN_AT)


def test_current_scaling_never_saturates():
    found = response_to(trace("current", None, None, back=DOWN_AT), history())
    assert (found.steps_that_saturate, found.worst_share, found.worst_error) == (0, 0.0, 0.026)


def test_single_saturated_values_make_no_step_that_saturates():
    few = trace().model_copy(update={"saturated": (0.009, 0.011, *(0.0,) * (STEPS - 2))})
    assert response_to(few, history()).steps_that_saturate == 1
