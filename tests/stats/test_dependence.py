"""How much steps depend on one another, against definitions, known processes and arch's block lengths."""

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_steps import made_steps

from fp8bench.stats.dependence import (
    block_length,
    block_shortfall,
    effective_samples,
    lag1_autocorrelation,
    positive_correlation,
)

seconds = st.floats(min_value=1e-3, max_value=1e3)
series = st.lists(seconds, min_size=3, max_size=60)
quiet = pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0], [0.4] * 40])


class TestLag1Autocorrelation:
    def test_it_is_the_covariance_of_neighbours_over_the_variance(self) -> None:
        assert lag1_autocorrelation([1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.25)
        assert lag1_autocorrelation([1.0, -1.0] * 50) == pytest.approx(-0.99)

    @quiet
    def test_of_constant_or_few_samples_there_is_none(self, samples: list[float]) -> None:
        assert lag1_autocorrelation(samples) is None

    @given(series)
    def test_it_is_a_correlation_in_no_unit(self, samples: list[float]) -> None:
        correlation = lag1_autocorrelation(samples)

        assert correlation is None or -1 <= correlation <= 1
        assert lag1_autocorrelation([2 * sample for sample in samples]) == correlation

    @pytest.mark.parametrize("true", [0.0, 0.3, 0.6])
    def test_it_finds_what_long_series_were_made_with(self, true: float) -> None:
        samples = made_steps(1, 1, true, 0, steps=5000)[0, 0]

        assert lag1_autocorrelation(samples.tolist()) == pytest.approx(true, abs=0.03)


class TestEffectiveSamples:
    @pytest.mark.parametrize("true", [0.0, 0.3, 0.6])
    def test_of_long_series_it_is_what_theory_gives(self, true: float) -> None:
        samples = made_steps(1, 1, true, 0, steps=5000)[0, 0]

        assert effective_samples(samples.tolist()) == pytest.approx(5000 * (1 - true) / (1 + true), rel=0.15)

    @quiet
    def test_of_constant_or_few_samples_there_is_none(self, samples: list[float]) -> None:
        assert effective_samples(samples) is None

    def test_steps_that_alternate_are_worth_no_more_than_there_are(self) -> None:
        assert effective_samples([1.0, 1.1] * 20) == 40

    @given(series)
    def test_it_is_between_one_and_all(self, samples: list[float]) -> None:
        effective = effective_samples(samples)

        assert effective is None or 1 <= effective <= len(samples)


class TestPositiveCorrelation:
    @pytest.mark.parametrize("true", [0.0, 0.3, 0.6])
    def test_of_forty_steps_it_is_right_on_average_where_the_plain_one_is_too_small(self, true: float) -> None:
        rows = [row.tolist() for row in made_steps(1000, 1, true, 0)[:, 0]]

        plain = np.median([lag1_autocorrelation(row) or 0.0 for row in rows])
        corrected = np.median([positive_correlation(row) for row in rows])

        assert plain < true
        assert corrected == pytest.approx(true, abs=0.03)

    @given(st.lists(seconds, max_size=20), st.integers(1, 2))
    def test_it_stays_where_forty_steps_can_tell(self, samples: list[float], fitted: int) -> None:
        assert 0 <= positive_correlation(samples, fitted) <= 0.8


class TestBlockLength:
    @pytest.mark.slow
    @pytest.mark.parametrize("steps", [40, 100, 200])
    @pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9])
    def test_it_is_archs(self, steps: int, correlation: float) -> None:
        """Of every series but a few: arch shares out the steps between lags a little otherwise, which can move the
        first lag that counts as noise by one.
        """
        from arch.bootstrap import optimal_block_length  # It takes seconds to import.

        rows = made_steps(60, 1, correlation, 0, steps=steps)[:, 0]

        theirs = optimal_block_length(rows.T)["circular"].to_numpy()
        expected = np.rint(np.clip(theirs, 1, steps // 3))
        ours = np.array([block_length(row.tolist()) for row in rows])

        assert np.mean(np.abs(ours - expected) <= 1) >= 0.95

    @quiet
    def test_of_constant_or_few_samples_it_is_one(self, samples: list[float]) -> None:
        assert block_length(samples) == 1

    @given(series)
    def test_it_is_one_to_a_third_of_the_steps(self, samples: list[float]) -> None:
        assert 1 <= block_length(samples) <= max(1, len(samples) // 3)


class TestBlockShortfall:
    @pytest.mark.parametrize("length", [1, 4, 10])
    def test_of_independent_steps_it_is_only_that_their_mean_moved_along(self, length: int) -> None:
        assert block_shortfall([1.0, 1.1] * 20, length) == pytest.approx(40 / (40 - length))

    @pytest.mark.parametrize(("correlation", "length"), [(0.0, 5), (0.3, 5), (0.6, 5), (0.6, 10)])
    def test_it_is_the_factor_that_the_variance_of_a_mean_is_short_of(self, correlation: float, length: int) -> None:
        rows = made_steps(4000, 1, correlation, 0, steps=60)[:, 0]
        around = np.concatenate([rows, rows[:, : length - 1]], axis=1)
        blocks = np.lib.stride_tricks.sliding_window_view(around, length, axis=1).mean(axis=2)
        bootstrapped = blocks.var(axis=1).mean() * length / 60

        shortfall = np.median([block_shortfall(row.tolist(), length) for row in rows])

        assert shortfall == pytest.approx(rows.mean(axis=1).var() / bootstrapped, rel=0.1)

    @given(series, st.data())
    def test_blocks_never_overstate_it(self, samples: list[float], data: st.DataObject) -> None:
        length = data.draw(st.integers(1, len(samples) - 1))

        assert block_shortfall(samples, length) >= 1

    @pytest.mark.parametrize("length", [0, 4, 5])
    def test_blocks_that_cannot_be_drawn_are_an_error(self, length: int) -> None:
        with pytest.raises(ValueError, match="cannot be drawn"):
            block_shortfall([1.0, 2.0, 3.0, 5.0], length)


def test_ten_thousand_steps_take_no_more_than_a_second() -> None:
    samples = made_steps(1, 1, 0.6, 0, steps=10_000)[0, 0].tolist()
    start = perf_counter()

    assert block_length(samples) > 1
    assert effective_samples(samples) is not None
    assert perf_counter() - start < 1
