"""Products of several records side by side, as numbers: ratios, what is undecided, and the sums of a step."""

import pytest
from builders import at
from report.made_gemm import FASTER, config, gemm_record, of_layers, of_sweep, sweep_record, timing

from fp8bench.kinds.gemm.compared import Reading, compare_products
from fp8bench.pricing.catalog import load
from fp8bench.schema.gemm import Product, ProductTimings, Shape, Timing
from fp8bench.tables.side_by_side import reasons

CATALOG = load()
FC1 = "blocks.*.mlp.fc1 forward"
WRONG = Timing(precision="fp8-rowwise", status="invalid", reason="the product is off by 1")


def layer(*timings, calls=2, name="fc", m=64, stays_bf16=None):
    shape = Shape(m=m, n=64, k=64)
    product = Product(shape=shape, layers=(name,), calls_per_step=calls, stays_bf16=stays_bf16)
    return ProductTimings(product=product, timings=timings)


def slower(times):
    """ViT-Huge's products, each taking so many times as long."""
    return tuple(
        one.model_copy(update={"timings": tuple(_slower(t, times) for t in one.timings)}) for one in of_layers()
    )


def _slower(one, times):
    interval = tuple(value * times for value in one.time_ci_s)
    return one.model_copy(update={"time_s": one.time_s * times, "time_ci_s": interval})


def compared(*products):
    """One record for each: its products."""
    instances = ("p5", "p4d", "p3")
    records = [
        gemm_record(instance=name, products=tuple(own), created_utc=at(place))
        for place, (name, own) in enumerate(zip(instances, products, strict=False))
    ]
    return compare_products(records, CATALOG)


def readings_of(found, precision, casts="none", product="fc forward"):
    (row,) = [one for one in found.rows if (one.product, one.precision, one.casts) == (product, precision, casts)]
    return row.readings


def test_a_row_is_a_product_in_a_precision_and_a_way_of_casting():
    found = compared(of_layers(), slower(1.25))
    assert found.labels == ("p5", "p4d")
    assert len(found.rows) == 12 * (1 + 4 * 2) + 1
    assert [(row.precision, row.casts) for row in found.rows[:4]] == [
        ("bf16", "none"),
        ("fp8-tensorwise", "none"),
        ("fp8-tensorwise", "eager"),
        ("fp8-tensorwise-fast", "none"),
    ]
    assert (found.rows[-1].product, str(found.rows[-1].shape)) == ("head forward", "64 x 1000 x 1280")


def test_a_ratio_is_the_firsts_time_over_this_ones():
    first, second, third = readings_of(compared(of_layers(), slower(1.25), slower(0.5)), "fp8-tensorwise", product=FC1)
    assert first.tflops == pytest.approx(669 * 1.7)
    assert second.tflops == pytest.approx(669 * 1.7 / 1.25)
    assert (first.ratio, first.verdict) == (None, None)
    assert (second.ratio, second.verdict) == (pytest.approx(0.8), "slower")
    assert (third.ratio, third.verdict) == (pytest.approx(2.0), "faster")


@pytest.mark.parametrize(
    ("time_s", "verdict"), [(0.9e-3, "faster"), (0.991e-3, "undecided"), (1.009e-3, "undecided"), (1.1e-3, "slower")]
)
def test_a_ratio_is_undecided_where_the_intervals_overlap(time_s, verdict):
    _, second = readings_of(compared([layer(timing("bf16", 1e-3))], [layer(timing("bf16", time_s))]), "bf16")
    assert (second.ratio, second.verdict) == (pytest.approx(1e-3 / time_s), verdict)


def test_without_an_interval_there_is_a_ratio_and_no_verdict():
    alone = timing("bf16", 5e-4, time_ci_s=None)
    _, second = readings_of(compared([layer(timing("bf16", 1e-3))], [layer(alone)]), "bf16")
    assert (second.ratio, second.verdict) == (2.0, None)


@pytest.mark.parametrize("which", [0, 1])
def test_an_emulated_time_has_no_ratio_on_either_side(which):
    times = [timing("fp8-rowwise", 1e-3, emulated=place == which) for place in range(2)]
    found = compared(*([layer(one)] for one in times))
    _, second = readings_of(found, "fp8-rowwise")
    assert (second.time_s, second.ratio, second.verdict) == (1e-3, None, None)
    assert found.emulated == (("p5", "p4d")[which],)
    (step,) = found.steps
    assert (step.readings[1].time_s, step.readings[1].ratio) == (2e-3, None)


def test_what_one_record_lacks_is_known_of_the_other_alone():
    ways = [timing("fp8-rowwise", 1e-3), timing("fp8-rowwise", 2e-3, casts="compiled")]
    found = compared([layer(timing("bf16", 1e-3))], [layer(*ways), layer(timing("bf16", 1e-6), name="extra")])
    assert [(row.product, row.precision, row.casts) for row in found.rows] == [
        ("fc forward", "bf16", "none"),
        ("fc forward", "fp8-rowwise", "none"),
        ("fc forward", "fp8-rowwise", "compiled"),
        ("extra forward", "bf16", "none"),
    ]
    first, second = readings_of(found, "fp8-rowwise", "compiled")
    assert first == Reading()
    assert (second.status, second.time_s, second.ratio) == ("ok", 2e-3, None)


def test_what_did_not_go_well_has_its_status_and_reason():
    found = compared([layer(timing("fp8-rowwise", 1e-3))], [layer(WRONG)])
    _, second = readings_of(found, "fp8-rowwise")
    assert second == Reading("invalid", "the product is off by 1")
    assert reasons(found.rows) == ("the product is off by 1",)


def test_a_step_is_the_sum_of_time_times_calls_and_the_head_counts_as_bf16():
    found = compared(of_layers(), slower(1.25))
    steps = {(row.precision, row.casts): row.readings for row in found.steps}
    bf16_s = sum(32 * one.find("bf16").time_s for one in of_layers()[:-1])
    assert steps["bf16", "none"][0].time_s == pytest.approx(bf16_s + 8e-6)
    first, second = steps["fp8-rowwise", "none"]
    assert first.time_s == pytest.approx(bf16_s / FASTER["fp8-rowwise"] + 8e-6)
    assert first.time_ci_s == pytest.approx((first.time_s * 0.995, first.time_s * 1.005))
    assert (second.ratio, second.verdict) == (pytest.approx(0.8), "slower")
    flops = sum(one.product.shape.flops * one.product.calls_per_step for one in of_layers())
    assert second.tflops == pytest.approx(flops / (1.25 * first.time_s) / 1e12)


def test_a_step_in_small_numbers():
    fp8 = [timing("fp8-rowwise", 1e-3), timing("fp8-rowwise", 3e-3, casts="eager")]
    head = layer(timing("bf16", 7e-3), calls=1, name="head", stays_bf16="the head stays bf16")
    found = compared([layer(timing("bf16", 2e-3), *fp8, calls=10), head], [layer(timing("bf16", 1e-3), calls=10), head])
    assert {(row.precision, row.casts): row.readings[0].time_s for row in found.steps} == {
        ("bf16", "none"): pytest.approx(0.027),
        ("fp8-rowwise", "none"): pytest.approx(0.017),
        ("fp8-rowwise", "eager"): pytest.approx(0.037),
    }
    assert found.steps[0].readings[1].ratio == pytest.approx(27 / 17)
    assert found.steps[1].readings[1] == Reading()


def test_a_product_without_a_right_time_leaves_its_record_without_a_sum():
    good = layer(timing("bf16", 1e-3), timing("fp8-rowwise", 5e-4))
    bad = layer(timing("bf16", 1e-3), WRONG, name="other")
    right = layer(timing("bf16", 1e-3), timing("fp8-rowwise", 5e-4), name="other")
    found = compared([good, bad], [good, right])
    steps = {row.precision: row.readings for row in found.steps}
    assert steps["fp8-rowwise"][0] == Reading()
    assert (steps["fp8-rowwise"][1].time_s, steps["fp8-rowwise"][1].ratio) == (pytest.approx(2e-3), None)
    assert steps["bf16"][0].time_s == pytest.approx(4e-3)
    assert [row.precision for row in compared([good, bad], [good, bad]).steps] == ["bf16"]


def test_a_sum_of_times_without_an_interval_has_none():
    rows = compared([layer(timing("bf16", 1e-3))], [layer(timing("bf16", 1e-3, time_ci_s=None))]).steps
    assert [reading.time_ci_s is None for reading in rows[0].readings] == [False, True]
    assert (rows[0].readings[1].ratio, rows[0].readings[1].verdict) == (1.0, None)


def test_shapes_make_no_step():
    records = [sweep_record(products=of_sweep((512, 1024)), instance=name) for name in ("p5", "p4d")]
    found = compare_products(records, CATALOG)
    assert found.steps == ()
    assert len(found.rows) == 2 * 9
    shapes = gemm_record(products=(), config=config(workload=None, batch_size=None), bounds=())
    assert compare_products([shapes, shapes], CATALOG).rows == ()
