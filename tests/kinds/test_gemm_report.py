"""From a record to rows: speed, shares, speed-ups, and where fp8 begins to pay."""

import pytest
from report.made_gemm import CEILINGS, cube, gemm_record, of_layers, of_sweep, sweep_record, timing

from fp8bench.kinds.gemm.study import break_even, compared, gemm_report, measured_ceilings
from fp8bench.pricing.catalog import load
from fp8bench.schema.gemm import Ceiling, ProductTimings, Shape

CATALOG = load()
LOW = Ceiling(arithmetic="fp8", tflops=900.0, precision="fp8-tensorwise", size=4096)


def test_a_row_is_a_product_in_a_precision():
    report = gemm_report(gemm_record(), CATALOG)
    assert len(report.rows) == 12 * 5 + 1
    wanted = ("blocks.*.mlp.fc1 forward", "fp8-tensorwise")
    (row,) = [row for row in report.rows if (row["product"], row["precision"]) == wanted]
    assert (row["m"], row["n"], row["k"]) == (12608, 5120, 1280)
    assert row["tflops"] == pytest.approx(669 * 1.7)
    assert row["speedup_vs_bf16"] == pytest.approx(1.7)
    assert row["share_of_ceiling"] == pytest.approx(669 * 1.7 / 1470)
    assert row["share_of_peak"] == pytest.approx(669 * 1.7 / 1979)
    assert (row["verdict"], row["calls_per_step"]) == ("faster", 32)


def test_a_product_that_is_faster_than_the_large_squares_is_the_ceiling():
    report = gemm_report(gemm_record(ceilings=(CEILINGS[0], LOW)), CATALOG)
    bf16, fp8 = report.ceilings
    assert (bf16.tflops, bf16.shape) == (790.0, Shape.cube(8192))
    assert (fp8.tflops, fp8.precision) == (pytest.approx(669 * 1.7), "fp8-tensorwise")
    shares = {row["product"]: row["share_of_ceiling"] for row in report.rows if row["precision"] == fp8.precision}
    fastest = [one.product.shape for one in of_layers() if shares.get(one.product.label) == pytest.approx(1)]
    assert fp8.shape in fastest
    assert max(row["share_of_ceiling"] for row in report.rows) == pytest.approx(1)


def test_emulated_products_and_those_with_casts_are_no_ceiling():
    slow = timing("fp8-rowwise", 1e-5, casts="eager"), timing("fp8-rowwise-fast", 1e-6, emulated=True)
    one = ProductTimings(product=of_layers()[0].product, timings=(timing("bf16", 1e-3), *slow))
    assert measured_ceilings(gemm_record(products=(one,), ceilings=(LOW,)))[0].tflops == LOW.tflops
    assert measured_ceilings(gemm_record(ceilings=())) == ()


def test_an_unknown_gpu_has_no_peak():
    report = gemm_report(gemm_record("NVIDIA H200 NVL of tomorrow"), CATALOG)
    assert (report.peak_bf16_tflops, report.peak_fp8_tflops) == (None, None)
    assert {row["share_of_peak"] for row in report.rows} == {None}
    assert report.rows[0]["share_of_ceiling"] is not None


@pytest.mark.parametrize(
    ("fp8_s", "verdict"), [(0.9e-3, "faster"), (0.995e-3, "undecided"), (1.1e-3, "slower"), (1e-3, "undecided")]
)
def test_times_differ_where_their_intervals_have_nothing_in_common(fp8_s, verdict):
    assert compared(timing("fp8-rowwise", fp8_s), timing("bf16", 1e-3)) == (pytest.approx(1e-3 / fp8_s), verdict)


@pytest.mark.parametrize("emulated", [(True, False), (False, True)])
def test_nothing_is_held_against_an_emulated_time_either(emulated):
    assert compared(*(timing("fp8-rowwise", 1e-3, emulated=which) for which in emulated)) == (None, None)


def test_fp8_pays_from_the_smallest_size_that_is_faster_as_every_larger_one_is():
    report = gemm_report(sweep_record(), CATALOG)
    found = {(one.precision, one.casts): one.size for one in report.break_even}
    assert found["fp8-tensorwise", "none"] == 512
    assert found["fp8-rowwise", "none"] == 1536
    assert found["fp8-tensorwise", "eager"] is None


def square(size, fp8_s=5e-4, **changes):
    return cube(timing("bf16", 1e-3), timing("fp8-tensorwise", fp8_s), size=size, **changes)


def test_a_lucky_small_size_is_not_where_it_begins():
    (found,) = break_even([square(512), square(256), square(128, 2e-3), square(64)])
    assert (found.size, found.sizes) == (256, (64, 128, 256, 512))


def test_one_size_or_a_models_product_breaks_nothing_even():
    assert break_even(of_sweep((512,))) == []
    assert break_even([square(64, layers=("fc",), calls_per_step=1), square(128)]) == []
