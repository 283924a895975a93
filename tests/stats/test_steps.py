"""The slowest rank makes a step, and the median stands for a process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.stats.steps import longest_rank, slow_steps, slowest_rank

seconds = st.floats(min_value=1e-6, max_value=1e3)
ranks = st.integers(0, 20).flatmap(
    lambda steps: st.lists(st.lists(seconds, min_size=steps, max_size=steps), min_size=1, max_size=6)
)


class TestSlowestRank:
    def test_it_is_the_maximum_over_ranks_step_by_step(self):
        assert slowest_rank([[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]) == [2.0, 5.0, 3.5]

    @pytest.mark.slow
    @given(ranks)
    def test_a_step_lasts_as_long_as_one_rank_and_no_rank_lasts_longer(self, per_rank: list[list[float]]):
        steps = slowest_rank(per_rank)
        assert len(steps) == len(per_rank[0])
        for i, step in enumerate(steps):
            assert all(step >= rank[i] for rank in per_rank)
            assert step in [rank[i] for rank in per_rank]

    def test_no_rank_at_all_is_an_error(self):
        with pytest.raises(ValueError, match="no rank"):
            slowest_rank([])

    def test_ranks_that_counted_different_steps_are_an_error(self):
        with pytest.raises(ValueError, match="shorter"):
            slowest_rank([[1.0, 2.0], [1.0]])


class TestLongestRank:
    def test_it_is_the_rank_whose_steps_add_up_to_most(self):
        assert longest_rank([[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]) == [2.0, 4.0, 3.5]

    @given(ranks)
    def test_no_rank_took_longer_and_the_maxima_of_each_step_add_up_to_no_less(self, per_rank):
        total = sum(longest_rank(per_rank))
        assert total == max(map(sum, per_rank))
        assert sum(slowest_rank(per_rank)) >= total * (1 - 1e-12)

    def test_no_rank_at_all_and_unlike_counts_are_errors(self):
        with pytest.raises(ValueError, match="no rank"):
            longest_rank([])
        with pytest.raises(ValueError, match="different steps"):
            longest_rank([[1.0, 2.0], [1.0]])


class TestSlowSteps:
    def test_they_are_slow_beside_the_median_which_one_late_step_does_not_move(self):
        assert slow_steps([1.0, 1.0, 1.0, 1.0, 90.0]) == 1
        assert slow_steps([1.0, 1.45]) == 0
        assert slow_steps([1.0, 1.55]) == 1
