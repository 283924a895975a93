"""How much steps depend on one another, against definitions and known processes."""

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_steps import made_steps

from fp8bench.stats.dependence import (
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


def test_ten_thousand_steps_take_no_more_than_a_second() -> None:
    samples = made_steps(1, 1, 0.6, 0, steps=10_000)[0, 0].tolist()
    start = perf_counter()

    assert effective_samples(samples) is not None
    assert perf_counter() - start < 1
