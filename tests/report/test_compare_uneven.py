"""Elapsed time is what is paid for: slow steps count, are marked, and leave no verdict that medians contradict."""

from collections.abc import Sequence

import pytest
from builders import place as round_of
from builders import rank_samples, rounds, steps_about
from report.comparing import compared, row_of

from fp8bench.schema.record import Record

UNITS = 512


def with_spikes(step_time_s: float, spikes: Sequence[float], again: int = 21, **changes: object) -> list[Record]:
    """Three rounds of 21 steps, or of ten times as many as lie between two spikes (again); in each, the step in the
    middle between two spikes takes so many times as long as the others.
    """
    found = []
    for number, spike in enumerate(spikes, start=1):
        steps = list(steps_about(step_time_s, 21 if again == 21 else 10 * again + 1))
        for place in range(again // 2, len(steps), again):
            steps[place] = step_time_s * spike
        ranks = tuple(rank_samples(rank, tuple(steps)) for rank in range(8))
        (record,) = rounds(step_time_s, samples=ranks, **{"minutes": number, **changes})  # type: ignore[arg-type]
        found.append(record.model_copy(update={"session": round_of(number)}))
    return found


class TestElapsedTime:
    def test_a_steps_time_is_the_elapsed_time_over_the_steps(self):
        (row,) = compared(*with_spikes(0.1, (5, 5, 5))).rows
        steps = list(steps_about(0.1))
        steps[10] = 0.5

        assert row.step_time_s == pytest.approx(sum(steps) / len(steps))
        assert row.throughput_per_s == pytest.approx(UNITS * len(steps) / sum(steps))
        assert row.median_step_time_s == pytest.approx(0.1, rel=1e-3)

    def test_it_is_of_the_rank_that_took_longest_and_not_of_each_steps_slowest(self):
        fast, slow = (0.1, 0.3) * 10, (0.3, 0.11) * 10
        ranks = (rank_samples(0, fast), rank_samples(1, slow))
        (row,) = compared(*rounds(0.2, 0.2, samples=ranks)).rows

        assert row.step_time_s == pytest.approx(sum(slow) / 20)


class TestMarks:
    def test_slow_steps_are_counted_and_marked_and_so_is_what_they_do_to_the_mean(self):
        (row,) = compared(*with_spikes(0.1, (3, 1, 3))).rows

        assert row.slow_steps == 2
        assert "2 of 63 steps above 1.2x" in row.marks
        assert "mean 6.3 % above median" in row.marks

    def test_many_steps_a_little_slower_are_marked_by_the_mean_alone(self):
        steps = (0.1,) * 11 + (0.11,) * 10
        ranks = tuple(rank_samples(rank, steps) for rank in range(8))
        (row,) = compared(*rounds(0.1, 0.1, samples=ranks)).rows

        assert row.slow_steps == 0
        assert row.marks == ("mean 4.8 % above median",)

    def test_the_same_the_other_way_round(self):
        steps = (0.1,) * 11 + (0.09,) * 10
        ranks = tuple(rank_samples(rank, steps) for rank in range(8))
        (row,) = compared(*rounds(0.1, 0.1, samples=ranks)).rows

        assert row.marks == ("mean 4.8 % below median",)

    def test_even_steps_leave_no_mark(self):
        (row,) = compared(*rounds(0.1, 0.1, 0.1)).rows

        assert (row.slow_steps, row.marks) == (0, ())


class TestVerdict:
    OURS = (0.093, 0.0931, 0.0929)

    def test_one_that_medians_contradict_is_inconclusive_and_says_so(self):
        """By elapsed time a spike in every tenth step makes it dearer; by medians it is 7 % better value."""
        reference = rounds(0.1, 0.1001, 0.0999)
        ours = with_spikes(0.093, (4, 4, 4), again=10, mode="te-bf16")
        row = row_of(compared(*reference, *ours), ours[-1])

        assert (row.verdict, row.verdict_on) == ("inconclusive", "units_per_usd")
        assert row.verdict_why == "worse value by elapsed time, better value by medians"

    def test_a_reference_with_slow_steps_is_asked_by_medians_too(self):
        reference = with_spikes(0.1, (4, 4, 4), again=10)
        ours = rounds(0.104, 0.1041, 0.1039, mode="te-bf16")
        row = row_of(compared(*reference, *ours), ours[-1])

        assert row.verdict_why == "better value by elapsed time, worse value by medians"

    def test_one_that_both_give_stands(self):
        ours = with_spikes(0.05, (2, 2, 2), mode="te-bf16")
        row = row_of(compared(*rounds(0.1, 0.1001, 0.0999), *ours), ours[-1])

        assert row.slow_steps == 3
        assert (row.verdict, row.verdict_why) == ("better value", None)
