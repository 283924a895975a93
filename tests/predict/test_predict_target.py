"""Where a prediction goes: what it costs, and what cannot run there."""

import pytest
from builders import evidence, instance, price
from known import FP8_STEP, QUERY, catalog, one_source, records

from fp8bench.predict.target import memory_warning, target, unsupported
from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import RankMemory

CATALOG = catalog(
    instance("small", gpu="Fast", gpu_count=1, gpu_memory_gib=20, provider="a cloud"),
    instance("mine", gpu="Old", gpu_count=2),
    instance("rented", gpu="Old", gpu_count=8, provider="a cloud", prices=(price(80.0, region=None),)),
)


def of(key, gpus=None):
    return target(CATALOG.instances[key], CATALOG, gpus, QUERY)


def fp8(recipe="delayed"):
    found = evidence(fp8=True, recipe=recipe)
    return one_source(*records(mode="te-fp8", recipe=recipe, by_category=FP8_STEP, evidence=found))


def test_all_gpus_of_an_instance_train_unless_fewer_are_asked_for():
    assert (of("narrow-8x").machine.gpus, of("narrow-8x").paid.usd_per_hour) == (8, 80.0)
    two = of("narrow-8x", 2)
    assert (two.machine.gpus, two.share, two.paid.usd_per_hour) == (2, 0.25, 20.0)


def test_an_instance_without_a_price_says_why():
    assert of("small").paid is None
    assert "no price: none is known of 'small'" in of("small").about_price


def test_an_instance_of_ones_own_without_a_price_costs_a_share_of_a_listed_one():
    found = of("mine")

    assert (found.paid.instance, found.paid.gpus, found.paid.of) == ("rented", 2, 8)
    assert (found.share, found.paid.usd_per_hour) == (0.25, 20.0)
    assert found.about_price == "no price of mine is known: 2 of 8 GPUs of rented stand in for it"


def test_more_gpus_than_an_instance_has_are_refused():
    with pytest.raises(UsageError, match=r"narrow-8x has 8 GPUs, not 9, and several hosts are not predicted"):
        of("narrow-8x", 9)


def test_a_gpu_that_the_catalogue_does_not_know_is_refused_by_its_figures():
    with pytest.raises(UsageError, match="neither dense_bf16_tflops nor memory_bandwidth_gb_s is known"):
        of("bare")


def test_fp8_needs_its_units():
    assert unsupported(fp8(), of("old-1x")) == (
        "Old has no fp8 units, which take compute capability 8.9 or more, and Old has 8.0"
    )
    assert unsupported(fp8(), of("narrow-1x")) is None
    assert unsupported(one_source(), of("old-1x")) is None


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
    odd = there.gpu.model_copy(update={"name": "Odd", "compute_capability": capability})
    assert unsupported(fp8(recipe), type(there)(there.instance, odd, there.machine, None)) == said


def test_what_does_not_fit_into_memory_cannot_run():
    assert unsupported(one_source(), of("small")) == (
        "it needs 26.0 GiB of each GPU, and Fast has 20: predict a smaller batch"
    )
    assert memory_warning(one_source(), of("fast-1x")) is None


def test_what_nearly_fills_the_memory_is_warned_of_and_so_is_what_is_unknown():
    full = RankMemory(rank=0, peak_allocated_bytes=79 * 2**30, peak_reserved_bytes=None, peak_host_bytes=1)
    assert memory_warning(one_source(*records(memory=(full,))), of("fast-1x")) == (
        "needs 79.0 of 80 GiB: it may not fit"
    )
    assert memory_warning(one_source(*records(memory=())), of("fast-1x")) == "whether it fits into memory is unknown"
