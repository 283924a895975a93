"""Spans made into seconds a step: each moment once, and communication only where nothing hides it."""

import pytest
from steps_of_vit_huge import DATA

from fp8bench.profiling.kernels import LONGEST, breakdown
from fp8bench.profiling.trace import Span, Trace, TraceMetadata, read_trace

PRODUCT = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
FP8_PRODUCT = "nvjet_sm90_qqtst_128x256_64x4_2x1_v_bz_coopA_NTN"
ATTENTION = "flash_fwd_kernel"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def trace(*spans, steps=1, device="cuda"):
    """spans: name, start, end."""
    facts = TraceMetadata(mode="baseline-bf16", steps=steps, device=device, step_time_s=None)
    made = [span if isinstance(span, Span) else Span(span[0], span[1], span[2] - span[1]) for span in spans]
    return Trace(facts, tuple(sorted(made, key=lambda span: span.start_s)))


def test_seconds_are_a_step():
    profile = breakdown(trace((PRODUCT, 0, 2), (ATTENTION, 3, 4), (PRODUCT, 5, 7), (ATTENTION, 8, 9), steps=2))
    assert profile.by_category == {"gemm_bf16": 2.0, "attention": 1.0}
    assert (profile.busy_s, profile.steps, profile.device) == (3.0, 2, "cuda")
    assert [(k.name, k.category, k.seconds_per_step, k.calls_per_step) for k in profile.kernels] == [
        (PRODUCT, "gemm_bf16", 2.0, 1.0),
        (ATTENTION, "attention", 1.0, 1.0),
    ]


def test_a_moment_of_two_kernels_belongs_to_the_one_that_started_first():
    profile = breakdown(trace((PRODUCT, 0, 10), (ATTENTION, 5, 15), (FP8_PRODUCT, 6, 8)))
    assert profile.by_category == {"gemm_bf16": 10.0, "attention": 5.0, "gemm_fp8": 0.0}
    assert profile.busy_s == 15.0


@pytest.mark.parametrize(
    ("communication", "exposed"),
    [
        ([(NCCL, 0, 10)], 5.0),
        ([(NCCL, 2, 4)], 0.0),
        ([(NCCL, 20, 23)], 3.0),
        ([(NCCL, 0, 10), (NCCL, 8, 12)], 7.0),
        ([(NCCL, 4, 6), (NCCL, 7, 9)], 3.0),
    ],
)
def test_communication_yields_to_every_other_kernel(communication, exposed):
    profile = breakdown(trace((PRODUCT, 0, 2), (ATTENTION, 2, 5), *communication))
    assert profile.by_category["gemm_bf16"] == 2.0
    assert profile.by_category["attention"] == 3.0
    assert profile.by_category["nccl"] == pytest.approx(exposed)
    assert profile.busy_s == pytest.approx(5.0 + exposed)


def test_communication_is_also_told_whole():
    profile = breakdown(trace((PRODUCT, 0, 4), (NCCL, 1, 6), (NCCL, 5, 7)))
    assert profile.nccl_s == 6.0
    assert profile.nccl_overlapped_s == 3.0


def test_what_the_optimizer_launched_is_its_own_whatever_its_name():
    multiply = Span("void at::native::vectorized_elementwise_kernel<4, MulFunctor>", 0.0, 1.0, in_optimizer=True)
    reduced = Span(NCCL, 2.0, 1.0, in_optimizer=True)
    assert breakdown(trace(multiply, reduced)).by_category == {"optimizer": 1.0, "nccl": 1.0}


def test_the_longest_kernels_are_named_and_every_product():
    many = [(f"norm_{place}", 10.0 * place, 10.0 * place + 5) for place in range(LONGEST + 20)]
    short = (FP8_PRODUCT, 9000.0, 9000.001)
    names = [kernel.name for kernel in breakdown(trace(*many, short)).kernels]
    assert len(names) == LONGEST + 1
    assert names[-1] == FP8_PRODUCT


def test_a_real_step_of_te_fp8():
    profile = breakdown(read_trace(DATA / "trace-te-fp8.json.gz"))
    milliseconds = {category: round(seconds * 1e3, 1) for category, seconds in profile.by_category.items()}
    assert milliseconds == {
        "gemm_fp8": 35.2,
        "elementwise": 26.9,
        "cast": 15.8,
        "attention": 11.6,
        "copy": 7.7,
        "optimizer": 5.3,
        "gemm_bf16": 0.8,
    }
    assert profile.busy_s == pytest.approx(sum(profile.by_category.values()))
    assert profile.has_fp8_gemm
    assert profile.kernels[0].calls_per_step == 128


def test_a_real_step_of_a_cpu():
    profile = breakdown(read_trace(DATA / "trace-cpu.json.gz"))
    assert profile.device == "cpu"
    assert next(iter(profile.by_category)) == "gemm_bf16"
    assert 0 < profile.by_category["nccl"] < profile.nccl_s < profile.busy_s
    assert profile.busy_s == pytest.approx(sum(profile.by_category.values()))
    assert not profile.has_fp8_gemm
