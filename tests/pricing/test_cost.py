"""The price-performance formulas, by their laws and by the published example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.pricing import cost
from fp8bench.pricing.cost import break_even_usd_per_hour, gain, mfu, units_per_usd, usd_per_million_units

throughputs = st.floats(min_value=1e-3, max_value=1e7)
prices = st.floats(min_value=1e-2, max_value=1e4)
step_times = st.floats(min_value=1e-4, max_value=1e3)

P4D = units_per_usd(throughput_per_s=8 * 64 / 0.41, usd_per_hour=32.77)
P5 = units_per_usd(throughput_per_s=8 * 64 / 0.199, usd_per_hour=98.32)


class TestThePublishedExample:
    def test_images_for_a_usd(self) -> None:
        assert round(P4D) == 137_187
        assert round(P5) == 94_206

    def test_the_newer_gpu_buys_a_third_less(self) -> None:
        assert round(100 * gain(P5, P4D), 1) == -31.3

    def test_usd_for_a_million_images(self) -> None:
        assert usd_per_million_units(P4D) == pytest.approx(7.289, abs=0.001)
        assert usd_per_million_units(P5) == pytest.approx(10.615, abs=0.001)

    def test_the_price_at_which_they_would_be_even(self) -> None:
        even = break_even_usd_per_hour(8 * 64 / 0.199, P4D)

        assert even == pytest.approx(32.77 * 0.41 / 0.199)
        assert gain(units_per_usd(8 * 64 / 0.199, even), P4D) == pytest.approx(0, abs=1e-12)


class TestUnitsPerUsd:
    def test_an_hour_of_one_unit_a_second_at_one_usd_is_3600(self) -> None:
        assert units_per_usd(1.0, 1.0) == 3600

    @given(throughputs, prices)
    def test_it_times_usd_per_million_units_is_a_million(self, throughput_per_s: float, usd_per_hour: float) -> None:
        units = units_per_usd(throughput_per_s, usd_per_hour)

        assert units * usd_per_million_units(units) == pytest.approx(1e6)

    @given(throughputs, prices)
    def test_twice_the_price_buys_half_and_twice_the_speed_buys_twice(
        self, throughput_per_s: float, usd_per_hour: float
    ) -> None:
        units = units_per_usd(throughput_per_s, usd_per_hour)

        assert units_per_usd(throughput_per_s, 2 * usd_per_hour) == pytest.approx(units / 2)
        assert units_per_usd(2 * throughput_per_s, usd_per_hour) == pytest.approx(2 * units)


class TestGain:
    @given(throughputs, prices)
    def test_a_row_gains_nothing_over_itself(self, throughput_per_s: float, usd_per_hour: float) -> None:
        units = units_per_usd(throughput_per_s, usd_per_hour)

        assert gain(units, units) == 0

    @given(throughputs, throughputs)
    def test_the_way_there_and_back_cancel(self, one: float, other: float) -> None:
        assert (1 + gain(one, other)) * (1 + gain(other, one)) == pytest.approx(1)

    def test_its_sign_says_who_buys_more(self) -> None:
        assert gain(150.0, 100.0) == pytest.approx(0.5)
        assert gain(50.0, 100.0) == pytest.approx(-0.5)


class TestBreakEven:
    @given(throughputs, throughputs, prices)
    def test_put_back_as_the_price_it_gives_no_gain(
        self, throughput_per_s: float, reference_throughput_per_s: float, reference_usd_per_hour: float
    ) -> None:
        reference = units_per_usd(reference_throughput_per_s, reference_usd_per_hour)

        even = break_even_usd_per_hour(throughput_per_s, reference)

        assert gain(units_per_usd(throughput_per_s, even), reference) == pytest.approx(0, abs=1e-9)

    @given(throughputs, prices)
    def test_the_references_own_is_its_price(self, throughput_per_s: float, usd_per_hour: float) -> None:
        own = break_even_usd_per_hour(throughput_per_s, units_per_usd(throughput_per_s, usd_per_hour))

        assert own == pytest.approx(usd_per_hour)

    @given(throughputs, prices, st.floats(min_value=1.01, max_value=10))
    def test_below_it_a_row_gains_and_above_it_loses(
        self, throughput_per_s: float, usd_per_hour: float, factor: float
    ) -> None:
        reference = units_per_usd(100.0, usd_per_hour)
        even = break_even_usd_per_hour(throughput_per_s, reference)

        assert gain(units_per_usd(throughput_per_s, even / factor), reference) > 0
        assert gain(units_per_usd(throughput_per_s, even * factor), reference) < 0


class TestMfu:
    def test_work_at_the_dense_peak_is_one(self) -> None:
        assert mfu(flops_per_step=8 * 989e12 * 0.5, step_time_s=0.5, gpus=8, peak_tflops=989) == pytest.approx(1.0)

    def test_vit_huge_on_one_h200(self) -> None:
        assert mfu(763.5e9 * 64, 0.1375, 1, 989) == pytest.approx(0.3593, abs=0.0001)

    @given(st.integers(1, 10**15), step_times, st.integers(1, 1024), st.floats(min_value=1, max_value=1e4))
    def test_it_scales_with_work_and_against_time_gpus_and_peak(
        self, flops_per_step: int, step_time_s: float, gpus: int, peak_tflops: float
    ) -> None:
        share = mfu(flops_per_step, step_time_s, gpus, peak_tflops)

        assert mfu(2 * flops_per_step, step_time_s, gpus, peak_tflops) == pytest.approx(2 * share)
        assert mfu(flops_per_step, 2 * step_time_s, gpus, peak_tflops) == pytest.approx(share / 2)
        assert mfu(flops_per_step, step_time_s, 2 * gpus, peak_tflops) == pytest.approx(share / 2)
        assert mfu(flops_per_step, step_time_s, gpus, 2 * peak_tflops) == pytest.approx(share / 2)

    @given(st.integers(1, 10**15), step_times, st.integers(1, 64))
    def test_as_many_times_the_work_on_as_many_gpus_is_the_same(
        self, flops_of_a_rank: int, step_time_s: float, gpus: int
    ) -> None:
        alone = mfu(flops_of_a_rank, step_time_s, 1, 989)

        assert mfu(flops_of_a_rank * gpus, step_time_s, gpus, 989) == pytest.approx(alone)


def test_a_job_takes_as_long_and_costs_as_much_as_its_units():
    assert cost.job_hours(90e6, 734.0) == pytest.approx(34.06, abs=0.01)
    assert cost.job_usd(90e6, 662_458.0) == pytest.approx(135.86, abs=0.01)
