"""The price-performance formulas, by their laws and by the published example; what a job takes and costs; and the front
of time against cost, held against its definition.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.pricing.cost import (
    break_even_usd_per_hour,
    front,
    gain,
    job_hours,
    job_usd,
    mfu,
    rate_interval,
    units_per_usd,
    usd_per_million_units,
)

throughputs = st.floats(min_value=1e-3, max_value=1e7)
prices = st.floats(min_value=1e-2, max_value=1e4)
P4D = units_per_usd(throughput_per_s=8 * 64 / 0.41, usd_per_hour=32.77)
P5 = units_per_usd(throughput_per_s=8 * 64 / 0.199, usd_per_hour=98.32)


def test_the_published_example_a_job_and_the_mfu_of_vit_huge_on_one_h200():
    assert (round(P4D), round(P5)) == (137_187, 94_206)
    assert round(100 * gain(P5, P4D), 1) == -31.3
    assert usd_per_million_units(P4D) == pytest.approx(7.289, abs=0.001)
    assert usd_per_million_units(P5) == pytest.approx(10.615, abs=0.001)
    assert break_even_usd_per_hour(8 * 64 / 0.199, P4D) == pytest.approx(32.77 * 0.41 / 0.199)
    assert job_hours(90e6, 734.0) == pytest.approx(34.06, abs=0.01)
    assert job_usd(90e6, 662_458.0) == pytest.approx(135.86, abs=0.01)
    assert mfu(763.5e9 * 64, 0.1375, 1, 989) == pytest.approx(0.3593, abs=0.0001)
    assert mfu(flops_per_step=8 * 989e12 * 0.5, step_time_s=0.5, gpus=8, peak_tflops=989) == pytest.approx(1.0)


@given(throughputs, throughputs, prices, st.floats(min_value=1.01, max_value=10))
def test_at_the_break_even_price_there_is_no_gain_below_it_a_row_gains_and_above_it_loses(
    throughput_per_s, reference_throughput_per_s, usd_per_hour, factor
):
    reference = units_per_usd(reference_throughput_per_s, usd_per_hour)
    even = break_even_usd_per_hour(throughput_per_s, reference)

    assert break_even_usd_per_hour(reference_throughput_per_s, reference) == pytest.approx(usd_per_hour)
    assert gain(units_per_usd(throughput_per_s, even), reference) == pytest.approx(0, abs=1e-9)
    assert gain(units_per_usd(throughput_per_s, even / factor), reference) > 0
    assert gain(units_per_usd(throughput_per_s, even * factor), reference) < 0


@pytest.mark.parametrize(
    ("ci", "rates"), [((0.09, 0.12), (100 * 0.1 / 0.12, 100 * 0.1 / 0.09)), (None, None), ((0.0, 0.2), None)]
)
def test_what_a_dollar_buys_is_least_where_steps_are_longest_and_unbounded_where_these_are(ci, rates):
    assert rate_interval(100.0, 0.1, ci) == (rates and pytest.approx(rates))


@given(st.lists(st.tuples(*[st.integers(1, 6).map(float)] * 2), max_size=12))
def test_what_is_slower_and_dearer_is_off_the_front_and_equal_ones_are_on_it_together(points):
    def beaten(one):
        return any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)

    assert front(points) == [not beaten(one) for one in points]
