"""Two modes are told apart where they differ, and hardly ever where they do not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import made_estimates, scaled

from fp8bench.stats.estimate import Estimate, estimate
from fp8bench.stats.ratio import ratio

seconds = st.floats(min_value=1e-3, max_value=1e3)
measurement = st.lists(st.lists(seconds, min_size=8, max_size=20), min_size=1, max_size=3)
few = settings(max_examples=25)


def steady(centre: float, processes: int = 3, steps: int = 40) -> Estimate:
    """Of processes that differ by a tenth of a per cent."""
    return estimate([[centre * (1 + process / 1000)] * steps for process in range(processes)])


class TestVerdict:
    @pytest.mark.parametrize(
        ("ours", "verdict"), [(0.9, "faster"), (1.1, "slower"), (1.0, "inconclusive"), (1.008, "inconclusive")]
    )
    def test_it_is_of_step_times_beyond_the_noise(self, ours: float, verdict: str) -> None:
        assert ratio(steady(ours), steady(1.0)).verdict == verdict

    def test_the_whole_interval_must_lie_beyond_the_noise(self) -> None:
        near = ratio(steady(0.989), steady(1.0))

        assert near.value < 0.99
        assert near.high is not None
        assert 0.99 <= near.high < 1
        assert near.verdict == "inconclusive"
        assert near.why == "the interval holds a difference of less than 1 %"
        assert ratio(steady(0.989), steady(1.0), noise=0).verdict == "faster"

    def test_what_is_told_apart_needs_no_reason(self) -> None:
        assert ratio(steady(0.9), steady(1.0)).why is None

    def test_without_a_noise_the_reason_is_equality(self) -> None:
        assert ratio(steady(1.0), steady(1.0), noise=0).why == "the interval holds 1"

    @pytest.mark.parametrize(("ours", "reference"), [(1, 3), (3, 1), (1, 1)])
    def test_one_process_is_not_a_measurement(self, ours: int, reference: int) -> None:
        found = ratio(steady(0.5, ours), steady(1.0, reference))

        assert (found.verdict, found.why) == ("inconclusive", "one process is not a measurement")
        assert found.high is not None
        assert found.high < 0.6

    def test_too_few_steps_have_a_ratio_and_no_interval(self) -> None:
        found = ratio(steady(0.5, steps=5), steady(1.0))

        assert found.value == pytest.approx(0.5)
        assert (found.low, found.high, found.verdict) == (None, None, "inconclusive")
        assert found.why == "too few steps for an interval"

    @pytest.mark.parametrize("noise", [-0.01, 1.0, float("nan")])
    def test_a_noise_that_is_no_share_is_an_error(self, noise: float) -> None:
        with pytest.raises(ValueError, match="a share"):
            ratio(steady(1.0), steady(1.0), noise)


class TestInterval:
    @few
    @given(measurement, measurement)
    def test_it_holds_the_ratio(self, ours: list[list[float]], reference: list[list[float]]) -> None:
        found = ratio(estimate(ours, replicates=200), estimate(reference, replicates=200))

        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low <= found.value <= found.high

    @few
    @given(measurement, st.floats(0.01, 100))
    def test_it_has_no_unit(self, processes: list[list[float]], factor: float) -> None:
        ours, reference = estimate(processes, replicates=200), steady(2.0)
        found, other = ratio(ours, reference), ratio(scaled(ours, factor), scaled(reference, factor))

        assert (found.low, found.value, found.high) == pytest.approx((other.low, other.value, other.high))

    def test_the_other_way_round_it_is_the_inverse(self) -> None:
        ours, reference = made_estimates(3, 0.6, 1, wanted=2)
        one, other = ratio(ours, reference), ratio(reference, ours)

        assert one.value == pytest.approx(1 / other.value)
        assert one.low is not None
        assert other.high is not None
        assert np.log(one.low) == pytest.approx(-np.log(other.high), rel=0.15)

    def test_being_asked_twice_makes_no_difference(self) -> None:
        ours, reference = made_estimates(3, 0.6, 1, wanted=2)

        assert ratio(ours, reference) == ratio(ours, reference)
