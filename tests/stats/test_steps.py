"""The slowest rank makes a step; the median of steps has an interval that covers what it claims to cover."""

import math
import statistics
from random import Random
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8bench.stats.steps import median_interval, slowest_rank, typical

seconds = st.floats(min_value=1e-6, max_value=1e3)
ranks = st.integers(0, 20).flatmap(
    lambda steps: st.lists(st.lists(seconds, min_size=steps, max_size=steps), min_size=1, max_size=6)
)


class TestSlowestRank:
    def test_it_is_the_maximum_over_ranks_step_by_step(self) -> None:
        assert slowest_rank([[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]) == [2.0, 5.0, 3.5]

    @settings(deadline=None)
    @given(ranks)
    def test_a_step_lasts_as_long_as_one_rank_and_no_rank_lasts_longer(self, per_rank: list[list[float]]) -> None:
        steps = slowest_rank(per_rank)

        assert len(steps) == len(per_rank[0])
        for i, step in enumerate(steps):
            assert all(step >= rank[i] for rank in per_rank)
            assert step in [rank[i] for rank in per_rank]

    @settings(deadline=None)
    @given(st.lists(seconds))
    def test_a_lone_rank_is_its_own_slowest(self, steps: list[float]) -> None:
        assert slowest_rank([steps]) == steps

    def test_no_rank_at_all_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="no rank"):
            slowest_rank([])

    def test_ranks_that_counted_different_steps_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            slowest_rank([[1.0, 2.0], [1.0]])


class TestMedianInterval:
    @settings(deadline=None)
    @given(st.lists(seconds, min_size=6, max_size=80))
    def test_it_contains_the_median_and_stays_within_the_samples(self, samples: list[float]) -> None:
        interval = median_interval(samples)

        assert interval is not None
        low, high = interval
        assert min(samples) <= low <= statistics.median(samples) <= high <= max(samples)
        assert low in samples
        assert high in samples

    @settings(deadline=None)
    @given(st.lists(seconds, min_size=6, max_size=40), st.randoms(use_true_random=False))
    def test_the_order_of_samples_does_not_matter(self, samples: list[float], random: Random) -> None:
        shuffled = samples.copy()
        random.shuffle(shuffled)

        assert median_interval(shuffled) == median_interval(samples)

    @settings(deadline=None)
    @given(st.lists(seconds, min_size=6, max_size=40))
    def test_it_is_in_the_unit_of_the_samples(self, samples: list[float]) -> None:
        interval = median_interval(samples)
        doubled = median_interval([2 * sample for sample in samples])

        assert interval is not None
        assert doubled == (2 * interval[0], 2 * interval[1])

    @settings(deadline=None)
    @given(st.lists(seconds, min_size=8, max_size=60))
    def test_more_confidence_never_makes_it_narrower(self, samples: list[float]) -> None:
        narrow, wide = median_interval(samples, confidence=0.8), median_interval(samples, confidence=0.99)

        assert narrow is not None
        assert wide is not None
        assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]

    @pytest.mark.parametrize("count", range(6))
    def test_with_fewer_than_six_samples_there_is_none(self, count: int) -> None:
        assert median_interval([1.0] * count) is None

    def test_six_samples_are_the_fewest_and_give_the_whole_range(self) -> None:
        assert median_interval([6.0, 1.0, 4.0, 2.0, 5.0, 3.0]) == (1.0, 6.0)

    def test_higher_confidence_needs_more_samples(self) -> None:
        assert median_interval(range(7), confidence=0.99) is None
        assert median_interval(range(8), confidence=0.99) == (0, 7)

    @pytest.mark.parametrize(
        ("count", "lower", "upper"), [(10, 2, 9), (20, 6, 15), (40, 14, 27), (50, 18, 33), (100, 40, 61)]
    )
    def test_it_takes_the_ranks_of_the_textbook_tables(self, count: int, lower: int, upper: int) -> None:
        assert median_interval(range(1, count + 1)) == (lower, upper)

    @pytest.mark.parametrize("count", [*range(6, 60), 99, 100, 500, 1500])
    def test_its_ranks_are_the_narrowest_that_cover_95_percent(self, count: int) -> None:
        interval = median_interval(range(1, count + 1))

        def coverage(lower: int) -> float:
            """That at least `lower` and at most n - `lower` of n samples lie below the median: exact, by counting."""
            return sum(math.comb(count, below) for below in range(lower, count - lower + 1)) / 2**count

        assert interval is not None
        lower, upper = map(int, interval)
        assert lower + upper == count + 1
        assert coverage(lower) >= 0.95
        assert coverage(lower + 1) < 0.95

    def test_ten_thousand_steps_are_summed_up_within_a_second(self) -> None:
        start = perf_counter()

        assert median_interval([0.1] * 10_000) == (0.1, 0.1)
        assert perf_counter() - start < 1

    @pytest.mark.parametrize("count", [6, 10, 21, 40])
    @pytest.mark.parametrize("distribution", ["lognormal", "exponential", "normal"])
    def test_it_covers_the_true_median_as_often_as_it_says(self, count: int, distribution: str) -> None:
        random = np.random.default_rng(20231115)
        draws, true_median = {
            "lognormal": (random.lognormal(0.0, 1.0, (2000, count)), 1.0),
            "exponential": (random.exponential(1.0, (2000, count)), math.log(2)),
            "normal": (random.normal(5.0, 1.0, (2000, count)), 5.0),
        }[distribution]

        intervals = [median_interval(list(map(float, row))) for row in draws]

        covered = np.mean([pair is not None and pair[0] <= true_median <= pair[1] for pair in intervals])
        sampling_error = math.sqrt(0.95 * 0.05 / len(draws))
        assert covered >= 0.95 - 3 * sampling_error


class TestTypical:
    def test_it_is_the_median_so_that_one_late_step_does_not_move_it(self) -> None:
        assert typical([1.0, 1.0, 1.0, 1.0, 90.0]) == 1.0
        assert typical([1.0, 2.0]) == 1.5

    def test_no_sample_is_an_error(self) -> None:
        with pytest.raises(statistics.StatisticsError):
            typical([])
