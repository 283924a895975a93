"""Predictions: their numbers, their ranges, and what they warn of."""

import pytest
from builders import evidence, instance, price
from known import FP8_STEP, QUERY, case_of, catalog, gpu, one_source, records, some, what_is_known

from fp8bench.predict.prediction import predictions, target, unsupported
from fp8bench.predict.source import Sources
from fp8bench.predict.step import Machine
from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import RankMemory

CATALOG = catalog(
    instance("small", gpu="Fast", gpu_count=1, gpu_memory_gib=20, provider="a cloud"),
    instance("mine", gpu="Old", gpu_count=2),
    instance("rented", gpu="Old", gpu_count=8, provider="a cloud", prices=(price(80.0, region=None),)),
)


def of(key, gpus=None, known=CATALOG):
    return target(known.instances[key], known, gpus, QUERY)


def predicted(sources, key="narrow-1x", errors=(), gpus=None, known=CATALOG):
    return predictions(sources, of(key, gpus, known), what_is_known(*errors), known, QUERY)


def fp8(recipe="delayed"):
    found = evidence(fp8=True, recipe=recipe)
    return one_source(*records(mode="te-fp8", recipe=recipe, by_category=FP8_STEP, evidence=found))


def test_a_prediction_is_called_one_and_is_priced():
    (row,) = predicted(some(), errors=[case_of()]).rows
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
    (row,) = predicted(some(), errors=[case_of(error=0.25)]).rows
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


def test_the_same_gpu_in_another_instance_has_the_measured_interval():
    (row,) = predicted(some(*records("fast-2x")), "fast-8x", gpus=2).rows
    assert row.step_time_s == pytest.approx(0.1)
    assert row.step_time_range_s == pytest.approx(one_source(*records("fast-2x")).interval_s)
    assert (row.price_share, row.usd_per_hour) == (0.25, 20.0)


def test_more_gpus_than_were_measured_are_warned_of():
    found = predicted(some(), "fast-8x", [case_of("same GPU", "another number of GPUs")])
    (row,) = found.rows
    assert row.world_size == 8
    assert row.throughput_per_s == pytest.approx(512 / row.step_time_s)
    assert row.step_time_range_s[0] < 0.1
    assert found.warnings == ("8 GPUs are predicted from 1: the model was tested on up to 2",)


def test_a_workload_without_cases_is_untested_and_a_batch_size_is_said():
    (row,) = predicted(some(*records(settings={"workload": "vit-huge-256"})), errors=[case_of()]).rows
    assert (row.step_time_range_s, row.model_error) == (None, None)
    assert any("untested for vit-huge-256" in text for text in row.warnings)
    found = predictions(some(), of("narrow-1x"), what_is_known(case_of(), workloads={"vit-huge": (8,)}), CATALOG, QUERY)
    assert found.rows[0].warnings == ("untested at batch 64: the cases are at 8",)


def test_what_a_target_cannot_run_comes_last_and_has_no_numbers():
    rows = predicted(Sources((fp8(), one_source()), ("omitted: x",)), "old-1x").rows
    assert [(row.mode, row.status) for row in rows] == [("baseline-bf16", "predicted"), ("te-fp8", "unsupported")]
    assert "no fp8 units" in rows[1].reason
    assert (rows[1].step_time_s, rows[1].units_per_usd, rows[1].parts) == (None, None, ())


def test_what_was_measured_is_not_predicted():
    with pytest.raises(UsageError, match=r"fast-1x itself was measured on 1 GPU.*fp8bench compare fast-1x"):
        predicted(some(), "fast-1x")


def test_doubtful_figures_of_the_catalogue_are_named():
    doubted = gpu("Doubted", doubtful=("dense_bf16_tflops", "tdp_w"))
    known = catalog(instance("doubted-1x", gpu="Doubted", gpu_count=1, gpu_memory_gib=80))
    known = known.model_copy(update={"gpus": {**known.gpus, "Doubted": doubted}})
    found = predicted(some(), "doubted-1x", known=known)
    assert "doubtful in the catalogue: dense_bf16_tflops of Doubted" in found.rows[0].warnings
    assert "no price" in found.warnings[0]
    assert found.rows[0].units_per_usd is None


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


def test_an_instance_without_a_price_says_why():
    assert of("small").paid is None
    assert "no price: none is known of 'small'" in of("small").about_price


def test_more_gpus_than_an_instance_has_are_refused():
    with pytest.raises(UsageError, match=r"narrow-8x has 8 GPUs, not 9, and several hosts are not predicted"):
        of("narrow-8x", 9)


def test_a_gpu_that_the_catalogue_does_not_know_is_refused_by_its_figures():
    with pytest.raises(UsageError, match="neither dense_bf16_tflops nor memory_bandwidth_gb_s is known"):
        of("bare")


@pytest.mark.parametrize(
    ("recipe", "capability", "said"),
    [
        ("mxfp8", "9.0", "te-fp8:mxfp8 needs compute capability 10.0 or more, and Odd has 9.0"),
        ("block", "8.9", "te-fp8:block needs compute capability 9.0 or more, and Odd has 8.9"),
        ("block", "10.0", "te-fp8:block is computed by mxfp8 on Odd, and not as it was measured"),
        ("mxfp8", "10.0", None),
        ("block", "9.0", None),
    ],
)
def test_recipes_run_where_their_units_are(recipe, capability, said):
    there = of("fast-1x")
    odd = there.machine.gpu.model_copy(update={"name": "Odd", "compute_capability": capability})
    assert unsupported(fp8(recipe), there._replace(machine=Machine(odd, 1))) == said


def test_what_does_not_fit_into_memory_cannot_run():
    assert unsupported(one_source(), of("small")) == (
        "it needs 26.0 GiB of each GPU, and Fast has 20: predict a smaller batch"
    )


def test_what_nearly_fills_the_memory_is_warned_of_and_so_is_what_is_unknown():
    full = RankMemory(rank=0, peak_allocated_bytes=79 * 2**30, peak_reserved_bytes=None, peak_host_bytes=1)
    for memory, said in (
        ((full,), "needs 79.0 of 80 GiB: it may not fit"),
        ((), "whether it fits into memory is unknown"),
    ):
        (row,) = predicted(some(*records(memory=memory)), errors=[case_of()]).rows
        assert row.warnings == (said,)
