"""How many steps are timed, and how many run in all."""

import pytest

from fp8bench.stats.steps import MOST_STEPS, Length, steps_in_all, timed_steps


@pytest.mark.parametrize(
    ("warmup_step_s", "steps", "min_time_s", "expected"),
    [
        pytest.param([0.1] * 11, 100, 0.0, 100, id="no time is asked for"),
        pytest.param([0.1] * 11, 100, 9.0, 100, id="the count is more"),
        pytest.param([60.0, 0.1, 0.1], 100, 30.0, 330, id="the time is more, after a first step that compiles"),
        pytest.param([60.0, 5.0, 5.0, *[0.1] * 5], 100, 30.0, 330, id="slow first steps"),
        pytest.param([0.1, 0.1, 0.1, 7.0, 0.1, 0.1], 100, 30.0, 330, id="one slow step"),
        pytest.param([60.0], 100, 30.0, 100, id="only the step that compiles"),
        pytest.param([], 7, 30.0, 7, id="no warm-up"),
        pytest.param([0.0] * 3, 7, 30.0, 7, id="a clock that stood still"),
    ],
)
def test_a_count_and_a_time_are_both_reached(warmup_step_s, steps, min_time_s, expected):
    assert timed_steps(Length(len(warmup_step_s), steps, min_time_s), warmup_step_s) == expected


def test_they_are_whole_queues_full_and_never_endless():
    assert timed_steps(Length(3, 100, 86400.0), [1e-9] * 3) == MOST_STEPS
    for queue, expected in ((0, 100), (1, 100), (4, 100), (32, 128), (160, 160)):
        assert timed_steps(Length(0, 100), [], queue) == expected


def test_a_process_runs_more_than_it_times_and_a_replayed_step_is_split_in_steps_of_its_own():
    pace, proof, after, lead_in, profile = 5, 2 * 3, 1, 5, 3
    assert steps_in_all(Length(11, 100), 0.1, 0, replayed=False) == 11 + pace + proof + after + lead_in + 100 + profile
    launched, replayed = (steps_in_all(Length(11, 24, 10.0), 0.7615, 32, replayed) for replayed in (False, True))
    # 15 steps last 10 s with a tenth to spare; 24 are asked for; the loader makes 32 ahead.
    assert launched == 11 + 12 + 5 + 32 + 3
    assert replayed - launched == 10
