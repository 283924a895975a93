"""A loop timed many times: the typical time and the swing."""

from itertools import accumulate, chain

import pytest

from fp8bench.machine.host import SpeedFacts, measure_speed


def test_the_first_loop_is_left_out():
    durations = [9.0, 2.0, 3.0, 2.0]
    ticks = accumulate(chain.from_iterable((0.0, duration) for duration in durations))

    found = measure_speed(clock=lambda: next(ticks), turns=1, repeats=3)

    assert found.loop_s == (2.0, 3.0, 2.0)
    assert (found.median_s, found.swing) == (2.0, 1.5)


@pytest.mark.slow
def test_a_real_one_takes_about_a_moment():
    found = measure_speed()

    assert len(found.loop_s) == 15
    assert sum(found.loop_s) < 10
    assert found.swing >= 1


def test_an_even_host_has_a_swing_of_one():
    assert SpeedFacts(loop_s=(0.01, 0.01)).swing == 1
