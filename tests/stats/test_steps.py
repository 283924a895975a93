"""The slowest rank makes a step, and the median stands for a process."""

import pytest
from builders import measured, profile, rank_report, rank_samples, summary
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.stats.steps import (
    bottleneck,
    bottleneck_of,
    idle_share_of,
    longest_rank,
    slow_steps,
    slowest_rank,
    straggler,
)

seconds = st.floats(min_value=1e-6, max_value=1e3)
ranks = st.integers(0, 20).flatmap(
    lambda steps: st.lists(st.lists(seconds, min_size=steps, max_size=steps), min_size=1, max_size=6)
)


class TestSlowestRank:
    def test_it_is_the_maximum_over_ranks_step_by_step(self):
        assert slowest_rank([[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]) == [2.0, 5.0, 3.5]

    @pytest.mark.slow
    @given(ranks)
    def test_a_step_lasts_as_long_as_one_rank_and_no_rank_lasts_longer(self, per_rank):
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


@pytest.mark.parametrize("wait", [None, 0.0, 0.09, 0.9])
@pytest.mark.parametrize("idle", [0.0, 0.03, 0.099])
def test_a_gpu_that_is_busy_is_bound_by_nothing_however_long_its_host_then_waits(idle, wait):
    assert bottleneck(idle, wait) is None


@pytest.mark.parametrize(
    ("idle", "wait", "words"),
    [
        (0.10, None, "host-bound (idle 10 %)"),
        (0.38, 0.0, "host-bound (idle 38 %)"),
        (0.38, 0.09, "host-bound (idle 38 %)"),
        (0.45, 0.12, "host-bound (idle 45 %)"),
        (0.12, 0.10, "loader-bound (wait 10 %)"),
        (0.23, 0.62, "loader-bound (wait 62 %)"),
        (0.45, 0.23, "loader-bound (wait 23 %)"),
    ],
)
def test_a_gpu_that_is_idle_waits_for_data_where_that_is_most_of_it_and_else_for_launches(idle, wait, words):
    assert str(bottleneck(idle, wait)) == words


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (None, None),
        (0.0, None),
        (0.09, None),
        (0.10, "loader-bound (wait 10 %)"),
        (0.23, "loader-bound (wait 23 %)"),
        (0.8, "loader-bound (wait 80 %)"),
    ],
)
def test_where_no_idle_time_is_known_as_on_a_cpu_the_wait_tells(wait, words):
    bound = bottleneck(None, wait)
    assert (str(bound) if bound else None) == words


def test_a_deep_model_is_not_host_bound_though_the_launch_queue_is_a_small_part_of_its_step():
    """Thirty thousand launches a step: the host is a full queue ahead, which is 3 % of the step."""
    deep = measured(
        summary=summary(1.0, host_lead_s=0.03, idle_share=None),
        profile=profile(busy_s=0.985, by_category={"gemm_bf16": 0.985}),
        samples=(rank_samples(0, (1.0,) * 3),),
    )
    assert bottleneck_of(deep) is None


class TestOfARecord:
    def test_an_older_one_is_told_by_its_profile_and_its_elapsed_time(self):
        """Its summary's step time is a median."""
        samples = (rank_samples(0, (0.1, 0.1, 0.25)), rank_samples(1, (0.1, 0.1, 0.1)))
        record = measured(summary=summary(0.1), profile=profile(busy_s=0.09), samples=samples)
        assert idle_share_of(record) == pytest.approx(1 - 0.09 / 0.15)
        assert str(bottleneck_of(record)) == "host-bound (idle 40 %)"

    def test_without_samples_the_summarys_step_time_serves(self):
        record = measured(summary=summary(0.2), profile=profile(busy_s=0.09), samples=())
        assert idle_share_of(record) == pytest.approx(0.55)

    def test_without_a_profile_it_is_unknown(self):
        assert bottleneck_of(measured(summary=summary(0.1, host_lead_s=0.0))) is None

    def test_a_cpu_is_idle_for_no_host(self):
        record = measured(summary=summary(0.2), profile=profile(device="cpu"))
        assert idle_share_of(record) is bottleneck_of(record) is None


def samples(rank=0, step_s=0.1, forward_s=None, data_wait_s=0.0, steps=12):
    report = rank_report(rank, (step_s,) * steps)
    return report.samples.model_copy(
        update={
            "rank": rank,
            "data_wait_s": (data_wait_s,) * steps,
            "forward_s": None if forward_s is None else (forward_s,) * steps,
        }
    )


def test_ranks_that_are_alike_name_nobody():
    assert straggler([samples(rank, forward_s=0.03) for rank in range(4)]) is None


@pytest.mark.parametrize(
    ("late", "where"),
    [
        ({"forward_s": 0.045}, "in its forward pass"),
        ({"data_wait_s": 0.015, "forward_s": 0.03}, "waiting for data"),
        ({"data_wait_s": 0.015, "forward_s": 0.045}, "waiting for data"),
    ],
)
def test_the_rank_that_is_late_before_it_meets_the_others_is_named_though_all_steps_last_as_long(late, where):
    found = straggler([samples(rank, forward_s=0.03) for rank in range(3)] + [samples(3, **late)])
    assert (found.rank, found.where, found.share) == (3, where, pytest.approx(0.15))
    assert str(found) == f"spends 15 % of a step more than the other ranks {where}"


def test_where_ranks_do_not_meet_the_one_with_longer_steps_is_named():
    found = straggler([samples(0), samples(1, step_s=0.125)])
    assert (found.rank, found.where, found.share) == (1, "in its steps", pytest.approx(0.2))


def test_a_step_that_was_late_once_names_nobody():
    one = samples(1)
    once = one.model_copy(update={"data_wait_s": (5.0, *one.data_wait_s[1:])})
    assert straggler([samples(0), once]) is None


def test_few_steps_and_a_single_rank_name_nobody():
    assert straggler([samples(0), samples(1, step_s=0.2, steps=9)][1:]) is None
    assert straggler([samples(0, steps=9), samples(1, step_s=0.2, steps=9)]) is None
