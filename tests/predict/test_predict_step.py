"""A step on another machine: each kind of kernel by what limits it, what is refused, and how far the model is off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known import case_of, machine, what_is_known, work

from fp8bench.predict import step
from fp8bench.predict.step import Amounts, Limits, Machine, known, model_error
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import UsageError

FAST = machine()
NARROW = machine("narrow", memory_bandwidth_gb_s=2000.0)
WEAK = machine("weak", dense_bf16_tflops=250.0, dense_fp8_tflops=None)

HALF = Amounts(dram_gb=4000.0, sm_gcycles=100.0)
"""Half by memory and half by the SMs of FAST."""


def predict(measured, one, other, limits=None):
    """By memory alone, where no limits are given."""
    return step.predict(measured, one, other, limits or Limits())


def parts(step):
    return {part.name: part for part in step.parts}


def test_half_the_bandwidth_doubles_what_memory_limits_and_leaves_gemms_and_what_no_rule_covers():
    same, step = predict(work(), FAST, FAST), predict(work(), FAST, NARROW)
    assert same.step_s == same.least_s == pytest.approx(0.1)
    found = parts(step)
    assert found["gemm_bf16"].predicted_s == pytest.approx(0.05)
    assert found["elementwise"].predicted_s == pytest.approx(0.06)
    # 350 of 600 operations a byte: 7 / 12 of attention goes by the peak, which is the same.
    assert found["attention"].predicted_s == pytest.approx(0.01 * (7 / 12 + 5 / 12 * 2))
    assert step.step_s == pytest.approx(sum(part.predicted_s for part in step.parts))
    for name in ("idle", "other"):
        assert (found[name].rule, found[name].ratio) == ("carried over", None)
        assert found[name].predicted_s == pytest.approx(0.005)
    unknown = predict(work(tokens=None), FAST, NARROW)
    assert parts(unknown)["attention"].ratio == pytest.approx(2.0)
    assert any("does not say how long a sequence is" in text for text in unknown.assumed)


def test_half_by_memory_and_half_by_the_sms_is_slowed_by_either_as_its_share_says_else_by_bandwidth_alone():
    kinds = ("cast", "copy", "optimizer", "elementwise")
    unseen = parts(predict(work(by_category=dict.fromkeys(kinds, 0.02)), FAST, NARROW))
    assert {(unseen[kind].rule, unseen[kind].ratio) for kind in kinds} == {("memory and SMs", 2.0)}
    limits = Limits(kinds={"cast": HALF})
    casts = work(by_category={"cast": 0.05})
    assert parts(predict(casts, FAST, NARROW, limits))["cast"].ratio == pytest.approx(0.5 + 0.5 * 2)
    few = machine("few", sm_count=50, sm_clock_mhz=500)
    assert parts(predict(casts, FAST, few, limits))["cast"].ratio == pytest.approx(0.5 + 0.5 * 4)
    # On a GPU of half the bandwidth memory has two thirds of the time.
    assert parts(predict(casts, NARROW, FAST, limits))["cast"].ratio == pytest.approx(2 / 3 / 2 + 1 / 3)


BESIDE = Limits(beside_s=0.5)
SHARED = {"gemm_bf16": 0.06, "elementwise": 0.02, "optimizer": 0.004, "nccl": 0.002}


def test_kernels_are_as_much_shorter_or_longer_as_they_hide_less_or_more_communication():
    shared = work(by_category=SHARED, nccl_s=0.018)
    alone = parts(predict(shared, machine(gpus=2), FAST, BESIDE))
    # 16 ms were hidden, so 8 of the 80 ms are the price of that.
    kinds = ("gemm_bf16", "elementwise", "optimizer", "nccl")
    assert [alone[kind].predicted_s for kind in kinds] == pytest.approx([0.054, 0.018, 0.004, 0.0])
    assert alone["gemm_bf16"].ratio == pytest.approx(0.9)
    assert predict(shared, machine(gpus=2), machine(gpus=2), BESIDE).step_s == pytest.approx(0.1)
    eight = predict(shared, machine(gpus=2), machine(gpus=8), BESIDE)
    assert parts(eight)["gemm_bf16"].predicted_s == pytest.approx(0.06 + 0.75 * 0.016 * 0.5 * 0.06 / 0.08)
    assert "kernels take 0.50 s longer for each second of communication that they hide" in eight.assumed


def test_a_profile_that_was_busier_than_the_timed_step_is_brought_to_it():
    busier = work(by_category={"gemm_bf16": 0.11})
    assert predict(busier, FAST, FAST).step_s == pytest.approx(0.1)
    assert predict(busier, FAST, WEAK).step_s == pytest.approx(0.4)


@pytest.mark.parametrize(("bandwidth", "step_s"), [(40_000.0, 0.1), (2000.0, 0.1), (800.0, 0.15)])
def test_a_gpu_that_waits_for_its_host_is_no_faster_elsewhere_and_slower_only_where_it_has_more_to_do(
    bandwidth, step_s
):
    waiting = work(by_category={"elementwise": 0.03}, host_bound=True)
    other = machine("other", memory_bandwidth_gb_s=bandwidth)
    assert predict(waiting, FAST, other).step_s == pytest.approx(step_s)


@given(peak=st.floats(1.0, 1e5), bandwidth=st.floats(1.0, 1e5), more=st.floats(1.0, 100.0), idle=st.floats(0.0, 0.05))
def test_a_better_gpu_is_never_predicted_to_be_slower(peak, bandwidth, more, idle):
    measured = work(step_s=0.095 + idle)
    one = machine("one", dense_bf16_tflops=peak, memory_bandwidth_gb_s=bandwidth)
    better = machine("better", dense_bf16_tflops=peak * more, memory_bandwidth_gb_s=bandwidth * more)
    assert predict(measured, FAST, better).step_s <= predict(measured, FAST, one).step_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("exposed_s", "target", "found_s"),
    [
        (0.005, machine(gpus=8), 0.005 * 1.75),
        (0.005, machine("half", gpus=2, nvlink_gb_s=450.0), 0.01),
        # No more is hidden than there is to hide it.
        (0.0, machine("slow", gpus=2, nvlink_gb_s=90.0), 0.2 - 0.08),
    ],
)
def test_communication_scales_with_the_ring_and_stays_as_hidden_as_it_was(exposed_s, target, found_s):
    shared = work(by_category={"gemm_bf16": 0.08, "nccl": exposed_s}, nccl_s=0.02)
    assert parts(predict(shared, machine(gpus=2), target))["nccl"].predicted_s == pytest.approx(found_s)


def test_from_one_gpu_to_several_the_gradients_travel_unhidden_or_all_hidden():
    step = predict(work(), FAST, machine(gpus=8))
    # 10^9 weights of 4 bytes, 1.75 times over 450 GB/s in one direction.
    assert parts(step)["nccl"].predicted_s == pytest.approx(1.75 * 4e9 / 450e9)
    assert step.least_s == pytest.approx(0.1)
    assert step.step_s > 0.115
    assert "4.0 GB of gradients" in step.assumed[0]


@pytest.mark.parametrize(
    ("field", "category"),
    [
        ("dense_bf16_tflops", "gemm_bf16"),
        ("dense_fp8_tflops", "gemm_fp8"),
        ("memory_bandwidth_gb_s", "cast"),
        ("memory_bandwidth_gb_s", "attention"),
        ("sm_count", "elementwise"),
    ],
)
def test_a_figure_that_the_catalogue_lacks_is_named(field, category):
    unknown = machine("unknown", **{field: None})
    with pytest.raises(UsageError, match=f"{field} of unknown is not known"):
        predict(work(by_category={category: 0.09}), FAST, unknown, Limits(kinds={"elementwise": HALF}))


def test_gradients_of_unknown_size_and_float32_gemms_are_refused():
    with pytest.raises(UsageError, match="whose size this record does not say"):
        predict(work(gradient_bytes=None), FAST, machine(gpus=2))
    in_float32 = work(by_category={"gemm_fp32": 0.05, "elementwise": 0.03})
    assert predict(in_float32, FAST, FAST).step_s == pytest.approx(0.1)
    with pytest.raises(UsageError, match=r"50 % of this step is float32 GEMMs"):
        predict(in_float32, FAST, NARROW)
    few = work(by_category={"gemm_fp32": 0.0005, "elementwise": 0.03})
    assert parts(predict(few, FAST, NARROW))["gemm_fp32"].predicted_s == 0.0005


ONE, TWO, OTHER = machine("Fast"), machine("Narrow"), machine("Other")
OLD = machine("Old", compute_capability="8.0")
SCALE = ("same GPU", "another number of GPUs")


def test_no_change_has_no_error_and_what_nothing_tests_or_a_type_without_records_has_none_that_is_known():
    assert model_error(what_is_known(), "vit-huge", ONE, ONE).value == 0
    assert model_error(what_is_known(case_of(*SCALE)), "vit-huge", ONE, TWO) is None
    assert model_error(what_is_known(case_of()), "vit-huge", ONE, OLD) is None
    assert model_error(what_is_known(case_of()), "llm-1b", ONE, TWO) is None
    found = what_is_known(case_of(error=0.04))
    assert model_error(found, "vit-huge", ONE, TWO).share == pytest.approx(0.04)
    assert model_error(found, "vit-huge", ONE, OTHER) is None
    assert model_error(found, "vit-huge", OTHER, ONE) is None


@pytest.mark.parametrize(
    ("source", "target", "gpus", "share"),
    [
        ("H100-SXM5-80GB", "H200-SXM-141GB", (1, 1), 0.058),
        ("H100-SXM5-80GB", "H100-SXM5-80GB", (1, 2), 0.051),
        ("H100-SXM5-80GB", "H200-SXM-141GB", (1, 2), 0.079),
        ("H100-SXM5-80GB", "H100-PCIe-80GB", (1, 1), 0.222),
        ("H100-PCIe-80GB", "H100-PCIe-80GB", (1, 2), 0.095),
        ("H100-SXM5-80GB", "H100-PCIe-80GB", (1, 2), 0.232),
        ("H100-SXM5-80GB", "A100-SXM4-40GB", (1, 1), 0.222),
        ("H100-SXM5-80GB", "B200", (1, 8), 1.222 * 1.095 - 1),
    ],
)
def test_the_shipped_errors_are_those_with_a_gpu_type_left_out_wherever_it_has_no_records(source, target, gpus, share):
    types = load().gpus
    like_an_h100 = types["H100-SXM5-80GB"].model_copy(update={"name": "H100-PCIe-80GB"})
    one, other = (Machine(types.get(name, like_an_h100), of) for name, of in zip((source, target), gpus, strict=True))
    assert model_error(known(), "vit-huge", one, other).share == pytest.approx(share, abs=2e-3)
    assert model_error(known(), "llm-7b", one, other) is None
