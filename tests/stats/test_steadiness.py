"""Outliers, dependence, drift, and when warm-up had not ended: found where they are, and seldom where they are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept import thorough_unless

from fp8bench.stats.steadiness import positive_correlation, steadiness

seconds = st.floats(min_value=1e-3, max_value=1e3)


SPREAD = 0.01
_SETTLING = 60


def made_steps(trials, processes, correlation, between, steps=40, seed=20260501):
    """Step times whose truth is known: by trial, process and step, seconds, of a mode whose centre is 1 s. Steps are
    AR(1) with a standard deviation of 1 %; processes differ by a standard deviation of `between` per cent.
    """
    random = np.random.default_rng(seed)
    noise = random.standard_normal((_SETTLING + steps, trials, processes))
    for place in range(1, len(noise)):
        noise[place] += correlation * noise[place - 1]
    wander = np.moveaxis(noise[_SETTLING:], 0, -1) * np.sqrt(1 - correlation**2)
    return 1 + SPREAD * (wander + between * random.standard_normal((trials, processes, 1)))


def falling(share, steps=40):
    """Steps that fall evenly by this share of their median."""
    return [1 + share * (0.5 - step / (steps - 1)) for step in range(steps)]


def test_outliers_are_places_of_steps_far_from_the_median_by_the_limit_of_iglewicz_and_hoaglin():
    # The MAD is 1 about a median of 10: a modified score of 3.5 is 5.19 from it.
    ten = [9.0, 11.0, 9.0, 11.0, 10.0, 10.0, 9.0, 11.0]
    for samples, places in (
        ([1.0, 1.01, 0.99, 1.02, 5.0, 0.98, 1.0, 0.2], (4, 7)),
        ([*ten, 10.0 + 5.1], ()),
        ([*ten, 10.0 + 5.3], (8,)),
        # Among mostly equal steps one late one still stands out.
        ([1.0] * 38 + [1.0001, 2.0], (39,)),
        ([1.0] * 39 + [2.0], (39,)),
    ):
        assert steadiness(samples).outliers == places


def test_nothing_is_said_of_constant_or_few_samples():
    for found in map(steadiness, ([], [1.0], [1.0, 2.0], [0.4] * 40)):
        assert found.outliers == ()
        assert found.lag1_autocorrelation is found.effective_samples is found.unsteady is None


def test_an_autocorrelation_is_the_covariance_of_neighbours_over_the_variance():
    assert steadiness([1.0, 2.0, 3.0, 4.0]).lag1_autocorrelation == pytest.approx(0.25)
    assert steadiness([2.0, 1.0] * 50).lag1_autocorrelation == pytest.approx(-0.99)
    assert steadiness([1.0, 1.1] * 20).effective_samples == 40, "steps that alternate are worth no more than there are"


@given(st.lists(seconds, min_size=3, max_size=60), st.integers(1, 2))
def test_it_is_in_no_unit_and_leaves_between_one_step_and_all(samples, fitted):
    found = steadiness(samples)
    assert found.lag1_autocorrelation is None or -1 <= found.lag1_autocorrelation <= 1
    twice = steadiness([2 * sample for sample in samples])
    assert (twice.lag1_autocorrelation, twice.drift) == (found.lag1_autocorrelation, found.drift)
    assert found.effective_samples is None or 1 <= found.effective_samples <= len(samples)
    for part in (samples, samples[:2]):
        assert 0 <= positive_correlation(np.array(part), fitted) <= 0.8


@pytest.mark.parametrize("true", [0.0, 0.3, 0.6])
def test_it_finds_what_series_were_made_with_of_forty_steps_where_it_is_corrected(true):
    found = steadiness(made_steps(1, 1, true, 0, steps=5000)[0, 0].tolist())
    assert found.lag1_autocorrelation == pytest.approx(true, abs=0.03)
    assert found.effective_samples == pytest.approx(5000 * (1 - true) / (1 + true), rel=0.15)
    rows = made_steps(1000, 1, true, 0)[:, 0]
    assert np.median([steadiness(row).lag1_autocorrelation or 0.0 for row in rows]) < true
    assert np.median([positive_correlation(row) for row in rows]) == pytest.approx(true, abs=0.03)


class TestDrift:
    def test_it_is_the_change_from_first_to_last_over_the_median_which_late_steps_do_not_tilt(self):
        for share in (-0.1, 0.0, 0.041):
            assert steadiness(falling(-share)).drift == pytest.approx(share, abs=1e-12)
        samples = falling(0.03)
        samples[-3:] = [9.0, 9.0, 9.0]
        assert steadiness(samples).drift == pytest.approx(-0.03, rel=0.15)
        # Of thousands of steps it is of their neighbours' medians; of fewer than eight there is none.
        assert steadiness(falling(0.1, steps=20_000)).drift == pytest.approx(-0.1, rel=0.01)
        assert {steadiness([1.0] * count).drift for count in range(8)} == {None}


class TestUnsteady:
    def test_a_drift_is_told_with_its_figure_and_what_was_still_to_warm_up(self):
        for samples, counts, said in (
            (falling(0.041), (0, 0), "steps still fell by 4.1 % while they were timed"),
            (falling(-0.03), (None, None), "steps still rose by 3.0 % while they were timed"),
            ([1.0] * 40, (1, None), "torch.compile recompiled once while steps were timed"),
            ([1.0] * 40, (3, 2), "torch.compile recompiled 3 times while"),
            ([1.0] * 40, (0, 2), "allocator retried 2 times while"),
        ):
            assert said in steadiness(samples, *counts).unsteady


def levels(steps, share, changed):
    """1, and in some of the steps so much more."""
    shape = np.ones(steps)
    shape[changed] += share
    return shape


class TestThirds:
    def test_it_is_by_how_much_the_last_third_took_longer_which_late_steps_do_not_move(self):
        for share in (-0.06, 0.0, 0.12):
            assert steadiness(levels(60, share, slice(40, None)).tolist()).thirds == pytest.approx(share)
        samples = [1.0] * 60
        samples[50:54] = [9.0] * 4
        assert steadiness(samples).thirds == 0.0
        assert steadiness(samples, 0, 0).unsteady is None
        assert {steadiness([1.0] * count).thirds for count in (0, 1, 39)} == {None}
        # A change that is certain but small is none.
        assert steadiness(levels(100, 0.019, slice(0, 33)).tolist(), 0, 0).unsteady is None

    def test_a_level_that_changed_once_is_told_although_no_line_fits_it(self):
        for changed, slower, other in ((slice(0, 33), "first", "last"), (slice(67, None), "last", "first")):
            found = steadiness(levels(100, 0.1, changed).tolist(), 0, 0)
            assert found.drift == 0.0
            assert found.unsteady == f"the {slower} third of the timed steps took 10.0 % longer than the {other}"


FOUND = {
    "a drift of 5 %": (1 - 0.05 * np.linspace(0, 1, 40), (0.95, 0.9, 0.5)),
    "a large warm-up that ends within the first third": (1 + 0.15 * np.exp(-np.arange(100) / 12.5), (0.9, 0.9)),
    "a drift of 10 %": (1 - 0.1 * np.linspace(0, 1, 100), (0.95,) * 3),
    "10 % in the first third": (levels(100, 0.1, slice(0, 33)), (0.95,) * 3),
    "10 % in the first half": (levels(100, 0.1, slice(0, 50)), (0.95,) * 3),
    "10 % in the last third": (levels(100, 0.1, slice(67, None)), (0.95,) * 3),
}


def alarms(rows):
    """The share of these that is called unsteady."""
    return np.mean([steadiness(row.tolist(), 0, 0).unsteady is not None for row in rows])


@pytest.mark.parametrize(
    ("shape", "correlation", "least"),
    [
        thorough_unless("10 %" not in name, shape, correlation, share, id=f"{name}, {correlation}")
        for name, (shape, shares) in FOUND.items()
        for correlation, share in zip((0.0, 0.3, 0.6), shares, strict=False)
    ],
)
def test_a_change_is_found(shape, correlation, least):
    assert alarms(made_steps(200, 1, correlation, 0, len(shape))[:, 0] * shape) >= least


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(
    ("steps", "trials", "most"),
    [
        pytest.param(20, 1000, 0.055, marks=pytest.mark.slow),
        *(thorough_unless(False, steps, trials, 0.05) for steps, trials in ((40, 1000), (100, 500), (300, 500))),
    ],
)
def test_steps_that_only_wander_are_seldom_called_unsteady(correlation, steps, trials, most):
    """Spread five times over, so that nearly any difference is larger than 2 %. Of twenty steps, which have no thirds,
    the test of the slope stands alone.
    """
    assert alarms(1 + 5 * (made_steps(1000, 1, correlation, 0, steps)[:trials, 0] - 1)) <= most
