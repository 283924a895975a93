"""What a job takes and costs, by hand-computed figures, and what a dollar's worth is uncertain by."""

import pytest

from fp8bench.pricing.cost import job_time, rate_interval, units_per_usd


def test_a_job_takes_its_units_over_the_throughput():
    """Article 1's p4d: 8 GPUs at batch 64 in 0.41 s, 32.77 USD an hour."""
    time = job_time(90e6, throughput_per_s=512 / 0.41, step_time_s=0.41, step_time_ci_s=None)

    assert time.hours == pytest.approx(90e6 * 0.41 / 512 / 3600)
    assert time.usd(32.77) == pytest.approx(90e6 / units_per_usd(512 / 0.41, 32.77))
    assert (time.ci, time.usd_ci(32.77)) == (None, None)


def test_its_interval_is_that_of_the_step():
    time = job_time(3600e3, throughput_per_s=1000.0, step_time_s=0.1, step_time_ci_s=(0.09, 0.12))

    assert time.hours == pytest.approx(1.0)
    assert time.ci == pytest.approx((0.9, 1.2))
    assert time.usd_ci(10.0) == pytest.approx((9.0, 12.0))


def test_what_a_dollar_buys_is_least_where_steps_are_longest():
    assert rate_interval(100.0, 0.1, (0.09, 0.12)) == pytest.approx((100 * 0.1 / 0.12, 100 * 0.1 / 0.09))


@pytest.mark.parametrize("ci", [None, (0.0, 0.2)])
def test_a_time_that_nothing_bounds_bounds_no_value(ci):
    assert rate_interval(100.0, 0.1, ci) is None
