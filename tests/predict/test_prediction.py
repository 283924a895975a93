"""Predictions: their numbers, their ranges, and what they warn of."""

from datetime import date

import pytest
from builders import evidence, instance, price
from known import FP8_STEP, QUERY, catalog, gpu, one_source, records, some

from fp8bench.predict.limits import Limits
from fp8bench.predict.model_error import Case, change
from fp8bench.predict.prediction import predictions
from fp8bench.predict.source import Sources
from fp8bench.predict.target import target
from fp8bench.schema.errors import UsageError

CATALOG = catalog()


def case(one, key, error=0.1, **changes):
    """A prediction of what was measured that was so far off, for the change from `one` to `key`."""
    there = of(key)
    values = {
        "source": "a",
        "target": "b",
        "mode": "baseline-bf16",
        "execution": "eager",
        "workload": "vit-huge",
        "batch_size": 64,
        "machines": (one.machine.gpu, there.gpu.name),
        "gpus": (one.machine.gpus, there.machine.gpus),
        "change": change(one.machine, there.machine),
        "predicted": 1 + error,
        "measured": 1.0,
        "as_of": date(2026, 5, 1),
    }
    return Case(**{**values, **changes})


def of(key, gpus=None, known=CATALOG):
    return target(known.instances[key], known, gpus, QUERY)


def predicted(sources, key="narrow-1x", cases=None, gpus=None, known=CATALOG):
    return predictions(sources, of(key, gpus, known), [] if cases is None else cases, Limits(), known, QUERY)


def test_a_prediction_is_called_one_and_is_priced():
    (row,) = predicted(some(), cases=[case(one_source(), "narrow-1x")]).rows
    assert (row.source, row.status) == ("predicted", "predicted")
    assert row.step_time_s == pytest.approx(0.135)
    assert row.throughput_per_s == pytest.approx(64 / 0.135)
    assert row.units_per_usd == pytest.approx(64 / 0.135 * 360)
    assert row.usd_per_million_units == pytest.approx(1e6 / row.units_per_usd)
    # As much slower, as much cheaper it would have to be.
    assert row.measured.units_per_usd == pytest.approx(640 * 360)
    assert row.break_even_usd_per_hour == pytest.approx(10 * 0.1 / 0.135)
    assert sum(part.predicted_s for part in row.parts) == pytest.approx(row.step_time_s)


def test_its_range_is_the_measured_interval_widened_by_the_error():
    source = one_source()
    (row,) = predicted(some(), cases=[case(source, "narrow-1x", error=0.25)]).rows
    low, high = source.interval_s
    assert row.step_time_range_s == pytest.approx((1.35 * low / 1.25, 1.35 * high * 1.25))
    slowest, fastest = row.throughput_range_per_s
    assert slowest == pytest.approx(64 / row.step_time_range_s[1])
    assert row.units_per_usd_range == pytest.approx((slowest * 360, fastest * 360))
    assert row.break_even_range_usd_per_hour[0] < row.break_even_usd_per_hour < row.break_even_range_usd_per_hour[1]


def test_no_second_machine_no_range():
    (row,) = predicted(some()).rows
    assert row.step_time_s is not None
    assert (row.step_time_range_s, row.units_per_usd_range, row.model_error) == (None, None, None)
    assert row.warnings == ("no range: no record of a second machine tests such a change",)


def test_a_host_that_the_gpu_waits_for_has_no_range_either():
    waiting = some(*records(by_category={"gemm_bf16": 0.05}))
    (row,) = predicted(waiting, cases=[case(one_source(), "narrow-1x")]).rows
    assert row.step_time_range_s is None
    assert "the speed of another host is not known" in row.warnings[0]


def test_one_process_is_not_a_measurement():
    (row,) = predicted(some(records()[0]), cases=[case(one_source(), "narrow-1x")]).rows
    assert row.warnings == ("one process was measured, and its interval does not apply to the next one",)


def test_the_same_gpu_in_another_instance_has_the_measured_interval():
    (row,) = predicted(some(*records("fast-2x")), "fast-8x", gpus=2).rows
    assert row.step_time_s == pytest.approx(0.1)
    assert row.step_time_range_s == pytest.approx(one_source(*records("fast-2x")).interval_s)
    assert (row.price_share, row.usd_per_hour) == (0.25, 20.0)


def test_more_gpus_than_were_measured_are_warned_of():
    one = one_source()
    found = predicted(some(), "fast-8x", cases=[case(one, "fast-2x", 0.05)])
    (row,) = found.rows
    assert row.world_size == 8
    assert row.throughput_per_s == pytest.approx(512 / row.step_time_s)
    assert row.step_time_range_s[0] < 0.1
    assert found.warnings == ("8 GPUs are predicted from 1: the model was tested on up to 2",)


def test_a_gpu_that_was_never_compared_with_a_measurement_is_warned_of():
    tested = predicted(some(), cases=[case(one_source(), "narrow-1x")])
    assert tested.warnings == ()
    untested = predicted(some(), cases=[case(one_source(), "old-1x")])
    assert untested.warnings == ("no prediction of a Narrow was ever compared with a measurement",)


def test_what_a_target_cannot_run_comes_last_and_has_no_numbers():
    fp8 = one_source(
        *records(mode="te-fp8", recipe="delayed", by_category=FP8_STEP, evidence=evidence(fp8=True, recipe="delayed"))
    )
    rows = predicted(Sources((fp8, one_source()), ("omitted: x",)), "old-1x").rows
    assert [(row.mode, row.status) for row in rows] == [("baseline-bf16", "predicted"), ("te-fp8", "unsupported")]
    assert "no fp8 units" in rows[1].reason
    assert (rows[1].step_time_s, rows[1].units_per_usd, rows[1].parts) == (None, None, ())


def test_what_was_measured_is_not_predicted():
    with pytest.raises(UsageError, match=r"fast-1x itself was measured on 1 GPU.*fp8bench compare fast-1x"):
        predicted(some(), "fast-1x")


def test_of_an_instance_that_was_measured_in_part_the_rest_is_predicted():
    half = one_source(*records("fast-8x", settings={"world_size": 4}, samples=records("fast-2x")[0].samples * 2))
    both = Sources((half, one_source(*records("fast-8x"))), ())
    (row,) = predicted(both, "fast-8x").rows
    assert (row.measured.world_size, row.world_size) == (4, 8)


def test_doubtful_figures_of_the_catalogue_are_named():
    doubted = gpu("Doubted", doubtful=("dense_bf16_tflops", "tdp_w"))
    known = catalog(instance("doubted-1x", gpu="Doubted", gpu_count=1, gpu_memory_gib=80))
    known = known.model_copy(update={"gpus": {**known.gpus, "Doubted": doubted}})
    found = predicted(some(), "doubted-1x", known=known)
    assert "doubtful in the catalogue: dense_bf16_tflops of Doubted" in found.rows[0].warnings
    assert "no price" in found.warnings[0]
    assert found.rows[0].units_per_usd is None


def test_what_was_measured_on_some_gpus_costs_their_share():
    half = one_source(*records("fast-8x", settings={"world_size": 4}, samples=records("fast-2x")[0].samples * 2))
    (row,) = predicted(Sources((half,), ())).rows
    assert (row.measured.world_size, row.measured.usd_per_hour) == (4, 40.0)


def test_a_machine_of_ones_own_without_a_price_costs_a_share_of_a_listed_one():
    """As in `compare`: the measured one, and the predicted one."""
    rented = instance("rented", gpu="Fast", gpu_count=8, provider="a cloud", prices=(price(160.0, region=None),))
    known = catalog(rented, instance("mine", gpu="Fast", gpu_count=4, gpu_memory_gib=80))
    (row,) = predicted(some(*records("fast-custom", settings={"world_size": 2})), "mine", known=known).rows
    assert (row.measured.instance, row.measured.usd_per_hour) == ("fast-custom", 40.0)
    assert (row.usd_per_hour, row.price_share, row.price_share_of) == (80.0, 0.5, "rented")
    found = predicted(some(), "mine", known=known)
    assert "no price of mine is known: 4 of 8 GPUs of rented stand in for it" in found.warnings
    assert found.rows[0].measured.usd_per_hour == 10.0


def test_a_record_that_ran_on_another_gpu_than_its_instance_has_no_price_of_it():
    known = catalog()
    fast = known.instances["fast-1x"].model_copy(update={"gpu": "Old"})
    known = known.model_copy(update={"instances": {**known.instances, "fast-1x": fast}})
    (row,) = predicted(some(), known=known).rows
    assert row.measured.usd_per_hour is None
