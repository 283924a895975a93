"""Two modes are told apart where they differ, and hardly ever where they do not; and a slow-down where it counts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from fp8bench.stats.certainty import verdict_on_value
from fp8bench.stats.estimate import Estimate, estimate
from fp8bench.stats.ratio import ratio, regression

several = st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=2, max_size=9)
REFERENCE = estimate([0.1, 0.1002, 0.0999, 0.1])


def steady(centre: float, processes: int = 3) -> Estimate:
    """Of processes that differ by a tenth of a per cent."""
    return estimate(centre * (1 + process / 1000) for process in range(processes))


class TestVerdict:
    @pytest.mark.parametrize(
        ("ours", "verdict"), [(0.9, "faster"), (1.1, "slower"), (1.0, "inconclusive"), (1.008, "inconclusive")]
    )
    def test_it_is_of_step_times_beyond_the_noise(self, ours: float, verdict: str):
        found = ratio(steady(ours), steady(1.0))
        assert found.verdict == verdict
        assert (found.why is None) == (verdict != "inconclusive")

    def test_the_whole_interval_must_lie_beyond_the_noise(self):
        near = ratio(steady(0.989), steady(1.0))
        assert near.value < 0.99
        assert near.interval is not None
        assert 0.99 <= near.interval[1] < 1
        assert near.verdict == "inconclusive"
        assert ratio(steady(0.989), steady(1.0), noise=0).verdict == "faster"

    @pytest.mark.parametrize(("ours", "reference"), [(1, 3), (3, 1), (1, 1)])
    def test_one_process_is_not_a_measurement(self, ours: int, reference: int):
        found = ratio(steady(0.5, ours), steady(1.0, reference))
        assert found.value == pytest.approx(0.5, rel=1e-2)
        assert (found.verdict, found.interval, found.why) == ("inconclusive", None, "one process is not a measurement")

    @pytest.mark.parametrize("noise", [-0.01, 1.0, float("nan")])
    def test_a_noise_that_is_no_share_is_an_error(self, noise: float):
        with pytest.raises(ValueError, match="a share"):
            ratio(steady(1.0), steady(1.0), noise)

    @pytest.mark.parametrize(
        ("low", "high", "verdict"),
        [
            (0.9, 0.989, "better value"),
            (0.9, 0.99, "inconclusive"),
            (0.98, 1.02, "inconclusive"),
            (0.5, 2.0, "inconclusive"),
            (1.01, 1.2, "inconclusive"),
            (1.011, 1.2, "worse value"),
        ],
    )
    def test_a_unit_that_costs_less_is_better_value(self, low, high, verdict):
        assert verdict_on_value(low, high) == verdict


class TestInterval:
    @given(several, several)
    def test_it_holds_the_ratio_and_is_the_inverse_the_other_way_round(self, ours, reference):
        one, other = ratio(estimate(ours), estimate(reference)), ratio(estimate(reference), estimate(ours))
        assert one.interval is not None
        assert other.interval is not None
        assert 0 <= one.interval[0] <= one.value <= one.interval[1]
        assert one.interval == pytest.approx((1 / other.interval[1], 1 / other.interval[0]))

    @pytest.mark.parametrize(("mine", "theirs"), [(2, 2), (2, 9), (3, 5), (14, 4)])
    def test_of_unequal_rounds_it_is_welchs(self, mine: int, theirs: int):
        random = np.random.default_rng(mine)
        ours, reference = np.exp(0.01 * random.standard_normal(mine)), np.exp(0.03 * random.standard_normal(theirs))
        ends = ttest_ind(np.log(ours), np.log(reference), equal_var=False).confidence_interval(0.95)
        found = ratio(estimate(ours.tolist()), estimate(reference.tolist()))
        assert found.interval == pytest.approx((math.exp(ends.low), math.exp(ends.high)))

    @pytest.mark.parametrize(
        ("mine", "theirs", "least"),
        [(2, 2, 0.935), (2, 6, 0.9), (3, 3, 0.935), (3, 6, 0.935), (4, 4, 0.935), (4, 10, 0.935), (10, 10, 0.935)],
    )
    def test_it_holds_the_true_ratio_as_often_as_it_says_and_equal_modes_are_seldom_told_apart(
        self, mine: int, theirs: int, least: float
    ):
        """In 92 % where two processes face six: Welch's degrees of freedom are themselves an estimate."""
        random = np.random.default_rng(10 * mine + theirs)
        held = told_apart = 0
        for _ in range(1500):
            ours = estimate((0.8 * np.exp(0.02 * random.standard_normal(mine))).tolist())
            reference = estimate(np.exp(0.02 * random.standard_normal(theirs)).tolist())
            low, high = ratio(ours, reference).interval or (math.inf, 0)
            held += low <= 0.8 <= high
            told_apart += ratio(estimate(time / 0.8 for time in ours.times), reference).verdict != "inconclusive"
        assert held / 1500 >= least
        assert told_apart / 1500 <= 0.03

    def test_equal_processes_on_both_sides_leave_no_doubt(self):
        found = ratio(estimate([0.5] * 3), estimate([1.0] * 3))
        assert (found.value, found.interval, found.verdict) == (0.5, (0.5, 0.5), "faster")


class TestRegression:
    @pytest.mark.parametrize(
        ("times", "judgement"),
        [
            ((0.1, 0.1001, 0.0998, 0.1), "ok"),
            ((0.08, 0.0801, 0.0799, 0.08), "ok"),
            ((0.102, 0.1021, 0.1019, 0.102), "ok"),
            ((0.103, 0.1031, 0.1029, 0.103), "inconclusive"),
            ((0.105, 0.1051, 0.1049, 0.105), "regression"),
            ((0.1, 0.12, 0.1, 0.12), "inconclusive"),
        ],
    )
    def test_the_whole_interval_decides_on_one_side_of_what_is_allowed(self, times, judgement):
        found = regression(estimate(times), REFERENCE, 0.03)
        assert found.judgement == judgement
        assert (found.why is None) == (judgement != "inconclusive")
        assert (found.value, found.interval) == (
            ratio(estimate(times), REFERENCE).value,
            ratio(estimate(times), REFERENCE).interval,
        )

    def test_one_process_decides_nothing_however_slow(self):
        found = regression(estimate([0.2]), REFERENCE, 0.03)
        assert (found.judgement, found.interval) == ("inconclusive", None)
        assert found.why == "one process is not a measurement"

    @pytest.mark.parametrize("allowed", [-0.01, 1.0, float("nan")])
    def test_what_is_allowed_is_a_share(self, allowed):
        with pytest.raises(ValueError, match="share"):
            regression(REFERENCE, REFERENCE, allowed)

    def test_equal_modes_fail_hardly_ever_and_a_slow_down_well_beyond_the_limit_nearly_always(self):
        random = np.random.default_rng(3)

        def drawn(true_s):
            return estimate((true_s * (1 + 0.01 * random.standard_normal(4))).tolist())

        equal = [regression(drawn(0.1), drawn(0.1), 0.03).judgement for _ in range(1000)]
        slower = [regression(drawn(0.11), drawn(0.1), 0.03).judgement for _ in range(500)]
        assert equal.count("regression") <= 5
        assert slower.count("regression") >= 450
        assert slower.count("ok") == 0
