"""An estimate over processes: its value, what it says of the spread, and what leaves it alone. Its coverage has a file
of its own.
"""

import math
import statistics
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import made_steps

from fp8bench.stats.estimate import Estimate, estimate

seconds = st.floats(min_value=1e-3, max_value=1e3)
process = st.lists(seconds, min_size=8, max_size=30)
measurement = st.lists(process, min_size=1, max_size=4)
few = settings(max_examples=25)


def quick(processes: list[list[float]]) -> Estimate:
    """With fewer replicates than a table's."""
    return estimate(processes, replicates=200)


def made(processes: int, between: float = 1, correlation: float = 0.3, steps: int = 40) -> list[list[float]]:
    """One measurement."""
    rows: list[list[float]] = made_steps(1, processes, correlation, between, steps)[0].tolist()
    return rows


class TestValue:
    def test_it_is_the_mean_over_processes_of_elapsed_time_over_steps(self) -> None:
        assert estimate([[1.0, 1.0, 4.0], [3.0, 3.0, 3.0, 3.0]]).value == 2.5

    def test_of_medians_it_passes_over_late_steps(self) -> None:
        assert estimate([[1.0, 1.0, 90.0], [3.0, 3.0, 3.0, 3.0]], "median").value == 2.0
        assert estimate([[1.0] * 20 + [90.0], [3.0] * 20], "median").value == 2.0

    @few
    @given(measurement)
    def test_the_interval_holds_it(self, processes: list[list[float]]) -> None:
        found = quick(processes)

        assert found.value == pytest.approx(statistics.fmean(map(statistics.fmean, processes)))
        assert found.low is not None
        assert found.high is not None
        assert 0 < found.low <= found.value <= found.high

    def test_it_says_what_it_rests_on(self) -> None:
        found = estimate([[1.0] * 10, [2.0] * 30])

        assert (found.processes, found.steps) == (2, 40)


class TestWhatLeavesItAlone:
    @few
    @given(measurement, st.randoms(use_true_random=False))
    def test_the_order_of_processes(self, processes: list[list[float]], random: Random) -> None:
        shuffled = processes.copy()
        random.shuffle(shuffled)

        assert quick(shuffled) == quick(processes)

    @few
    @given(measurement, st.integers(-8, 8))
    def test_the_unit(self, processes: list[list[float]], power: int) -> None:
        found = quick(processes)
        scaled = quick([[step * 2.0**power for step in steps] for steps in processes])

        assert found.low is not None
        assert found.high is not None
        nothing = 1e-9 * scaled.value
        assert scaled.low == pytest.approx(found.low * 2.0**power, abs=nothing)
        assert scaled.high == pytest.approx(found.high * 2.0**power, abs=nothing)
        assert scaled.between == pytest.approx(found.between, abs=1e-9)
        assert scaled.degrees_of_freedom == pytest.approx(found.degrees_of_freedom)

    @pytest.mark.parametrize("statistic", ["mean", "median"])
    def test_being_asked_twice(self, statistic) -> None:
        assert estimate(made(3), statistic) == estimate(made(3), statistic)

    def test_lists_tuples_and_arrays_are_one(self) -> None:
        assert estimate(made_steps(1, 3, 0, 1)[0]) == estimate(made(3, correlation=0))


class TestSpread:
    def test_it_is_told_apart_from_what_steps_explain(self) -> None:
        found = estimate(made_steps(1, 150, 0.3, 2)[0].tolist())

        assert found.between == pytest.approx(0.02, rel=0.15)
        assert found.within == pytest.approx(0.01 * math.sqrt(1.3 / 0.7 / 40), rel=0.15)

    def test_processes_that_differ_by_no_more_than_their_steps_explain_have_none(self) -> None:
        rows = made_steps(1, 3, 0.0, 0)[0]
        alike = rows - np.mean(rows, axis=1, keepdims=True) + 1

        found = estimate(alike.tolist())

        assert found.between == 0
        assert found.degrees_of_freedom is not None
        assert found.degrees_of_freedom > 10

    def test_where_they_differ_by_far_more_the_width_rests_on_the_processes(self) -> None:
        found = estimate([[1.0] * 20, [1.1] * 20, [1.3] * 20])

        assert found.degrees_of_freedom == pytest.approx(2)
        assert found.within == 0
        assert found.between == pytest.approx(statistics.stdev([1.0, 1.1, 1.3]) / found.value)

    def test_its_width_is_then_students(self) -> None:
        medians = [1.00, 1.02, 1.03, 1.05, 1.07, 1.08, 1.10, 1.13, 1.15, 1.17]
        found = estimate([[median] * 20 for median in medians])

        assert found.half_width_share is not None
        assert found.half_width_share * found.value == pytest.approx(
            2.262 * statistics.stdev(medians) / math.sqrt(10), rel=0.02
        )

    def test_one_process_says_nothing_of_others(self) -> None:
        found = estimate(made(1))

        assert found.between is None
        assert found.low is not None
        assert found.within is not None

    def test_equal_steps_have_an_interval_without_width(self) -> None:
        found = estimate([[0.5] * 20] * 3)

        assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)
        assert (found.between, found.within, found.half_width_share) == (0, 0, 0)

    def test_an_interval_holds_no_time_that_is_impossible(self) -> None:
        found = estimate([[1.0] * 8, [9.0] * 8])

        assert found.low is not None
        assert found.high is not None
        assert 0 < found.low < 1
        assert found.high > 9

    def test_one_slow_process_in_many_widens_it_upwards(self) -> None:
        found = estimate([[1.0] * 8] * 15 + [[1.26] * 8])

        assert found.low is not None
        assert found.high is not None
        assert found.low <= 1.0
        # Student's alone would end at 1.051, and the truth of one process in five is 1.052.
        assert found.high > 1.055


class TestTooLittle:
    @pytest.mark.parametrize("processes", [[[1.0] * 7], [[1.0] * 40, [1.0] * 7], [[1.0]] * 5])
    def test_fewer_steps_than_a_bootstrap_needs_give_a_value_without_an_interval(
        self, processes: list[list[float]]
    ) -> None:
        found = estimate(processes)

        assert found.value == 1.0
        assert (found.low, found.high, found.half_width_share) == (None, None, None)
        assert (found.between, found.within, found.degrees_of_freedom) == (None, None, None)
        assert found.error is None

    @pytest.mark.parametrize("processes", [[], [[]], [[1.0], []]])
    def test_nothing_is_an_error(self, processes: list[list[float]]) -> None:
        with pytest.raises(ValueError, match="at least one process"):
            estimate(processes)

    @pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
    def test_step_times_that_are_none_are_an_error(self, wrong: float) -> None:
        with pytest.raises(ValueError, match="finite and above 0"):
            estimate([[1.0, wrong]])
