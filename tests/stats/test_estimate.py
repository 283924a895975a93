"""An estimate over processes: its value and its interval, by definition; and when they suffice."""

import math
import statistics
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from fp8bench.stats.certainty import FEWEST_ROUNDS, reached, unseen_share
from fp8bench.stats.estimate import NORMAL_QUANTILE, estimate, t_quantile

seconds = st.floats(min_value=1e-3, max_value=1e3)
several = st.lists(seconds, min_size=2, max_size=30)


@given(several)
def test_the_value_is_the_mean_and_the_interval_students_t_on_logarithms_which_holds_it(times):
    found = estimate(times)
    logs = [math.log(time) for time in times]
    reach = stdtrit(len(times) - 1, 0.975) * statistics.stdev(logs) / math.sqrt(len(times))
    low, high = found.interval
    assert found.value == statistics.fmean(times)
    assert low == pytest.approx(min(found.value, math.exp(statistics.fmean(logs) - reach)))
    assert high == pytest.approx(max(found.value, math.exp(statistics.fmean(logs) + reach)))
    assert found.spread == pytest.approx(statistics.stdev(logs))
    assert 0 < low <= found.value <= high


def test_one_process_has_no_interval_and_equal_ones_have_one_without_width():
    found = estimate([0.1])
    assert (found.value, found.processes) == (0.1, 1)
    assert (found.interval, found.spread, found.half_width_share) == (None, None, None)
    found = estimate([0.5] * 3)
    assert (found.interval, found.spread, found.half_width_share) == ((0.5, 0.5), 0, 0)


def test_a_quantile_of_whole_degrees_of_freedom_is_exact_and_of_infinitely_many_the_normal_distributions():
    whole = range(1, 61)
    assert [t_quantile(degrees) for degrees in whole] == pytest.approx([stdtrit(n, 0.975) for n in whole], rel=1e-12)
    assert t_quantile(math.inf) == NORMAL_QUANTILE
    for outside, degrees in product([0.5, 0.01, 3e-4], [3, 10, 200]):
        assert t_quantile(degrees, outside) == pytest.approx(stdtrit(degrees, 1 - outside / 2), rel=1e-8)


@given(st.floats(min_value=1, max_value=1e9))
def test_of_fractional_ones_too(degrees_of_freedom):
    assert t_quantile(degrees_of_freedom) == pytest.approx(stdtrit(degrees_of_freedom, 0.975), rel=1e-10)


def test_what_is_no_time_and_less_than_one_degree_are_errors():
    for times in ([], [0.0], [1.0, -1.0], [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match=r"at least one process|finite and above 0"):
            estimate(times)
    for degrees in (0.999, 0, -3, math.nan, -math.inf):
        with pytest.raises(ValueError, match="at least 1 degree"):
            t_quantile(degrees)


def test_a_state_of_that_share_is_missed_by_all_in_one_case_of_twenty_and_no_process_shows_any():
    for processes, share in ((1, 0.95), (4, 0.5271), (14, 0.1926), (59, 0.0495)):
        assert unseen_share(processes) == pytest.approx(share, abs=1e-4)
        assert (1 - unseen_share(processes)) ** processes == pytest.approx(0.05)
    assert unseen_share(FEWEST_ROUNDS) <= 0.2 < unseen_share(FEWEST_ROUNDS - 1), "of one process in five"
    with pytest.raises(ValueError, match="at least one process"):
        unseen_share(0)


def agreeing(processes, by=0.001):
    """Processes that differ by so much, there and back."""
    return estimate(1 + by * (place % 2) for place in range(processes))


def test_it_is_reached_once_enough_processes_agree_and_by_every_mode_after_pairs_of_rounds_alone():
    assert reached([agreeing(FEWEST_ROUNDS)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS - 2)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS), agreeing(FEWEST_ROUNDS, by=0.2)], 0.01)
    assert not reached([agreeing(FEWEST_ROUNDS + 1)], 0.01)
    for unknown in (None, estimate([1.0])):
        assert not reached([agreeing(FEWEST_ROUNDS), unknown], 0.5)
