"""What a device's time was for: the names of kernels and operators, of real steps and of other GPUs and libraries; and
spans made into seconds a step: each moment once, and communication only where nothing hides it. Reading a trace
strictly, keeping one without what names the machine, and its events made into spans: which kernels are the optimizer's,
and which time is an operator's own.
"""

import gzip
import json
from collections import defaultdict
from functools import partial

import pytest
from steps_of_vit_huge import DATA, IN_FP8, MODES, by_category, kernel_rows

from fp8bench.profiling.kernels import (
    LONGEST,
    Span,
    Trace,
    breakdown,
    categorize,
    cpu_spans,
    gpu_spans,
    keep_trace,
    read_trace,
)
from fp8bench.schema.errors import RunFailed, UsageError

# Milliseconds a step of all kernels, and of casts.
KNOWN_MS = {
    "baseline-bf16-eager": (133.2, 10.0),
    "baseline-bf16-compiled": (115.0, 7.0),
    "te-bf16-eager": (124.1, 4.5),
    "te-fp8-eager": (103.4, 15.8),
    "torchao-float8-compiled": (121.5, 41.0),
}


@pytest.mark.parametrize("name", MODES)
def test_no_kernel_of_a_real_step_is_unknown_and_only_modes_that_mean_it_multiply_in_fp8(name):
    assert {kernel for kernel, _ in kernel_rows(name) if categorize(kernel) == "other"} == set()
    seconds = by_category(name)
    products = seconds.get("gemm_fp8", 0) + seconds["gemm_bf16"]
    assert seconds.get("gemm_fp8", 0) / products == (pytest.approx(0.98, abs=0.01) if name in IN_FP8 else 0)
    assert "gemm_fp32" not in seconds
    # The optimizer and attention cost the same in every mode.
    assert seconds["optimizer"] * 1e3 == pytest.approx(5.25, abs=0.05)
    assert seconds["attention"] * 1e3 == pytest.approx(11.7, abs=0.3)
    if name in KNOWN_MS:
        assert [one * 1e3 for one in (sum(seconds.values()), seconds["cast"])] == pytest.approx(KNOWN_MS[name], abs=0.1)


@pytest.mark.parametrize(
    ("kernel", "category"),
    [
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", "gemm_fp8"),
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT", "gemm_fp8"),
        ("sm90_xmma_gemm_e4m3e5m2_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1_kernel", "gemm_fp8"),
        ("void cutlass::device_kernel<GemmUniversal<cutlass::float_e4m3_t, cutlass::bfloat16_t> >()", "gemm_fp8"),
        ("triton_tem_fused__scaled_mm_3", "gemm_fp8"),
        ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "gemm_bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "gemm_bf16"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm_bf16"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_kernel", "gemm_bf16"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>()", "gemm_bf16"),
        ("void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4>()", "gemm_bf16"),
        ("triton_tem_fused_addmm_7", "gemm_bf16"),
        ("ampere_sgemm_128x64_tn", "gemm_fp32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_kernel", "gemm_fp32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>()", "gemm_fp32"),
        ("nvjet_sm90_sss_128x128_32x5_1x2_h_bz_coopA_TNT", "gemm_fp32"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t> >()", "attention"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<cutlass::float_e4m3_t> >()", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", "attention"),
        ("triton_tem_fused_flex_attention_2", "attention"),
        ("void transformer_engine::block_scaled_cast_transpose_kernel<true, float, __nv_bfloat16>()", "cast"),
        ("void transformer_engine::cast_mxfp8_2D_kernel<false, false, false>()", "cast"),
        ("void transformer_engine::amax_kernel<8, true, __nv_bfloat16>()", "cast"),
        ("void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<float8_copy_kernel_cuda>", "cast"),
        ("triton_poi_fused__to_copy_scalar_tensor_abs_amax_clamp_mul_reciprocal_3", "cast"),
        ("triton_poi_fused__to_copy_clone_t_view_12", "cast"),
        ("triton_poi_fused__to_copy_add_mul_12", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_permute_view_4", "copy"),
        ("triton_poi_fused_addmm_gelu_view_3", "elementwise"),
        ("triton_for_fused_0", "optimizer"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
        ("some_kernel_of_nobody", "other"),
    ],
)  # fmt: skip
def test_names_of_other_gpus_and_libraries(kernel, category):
    assert categorize(kernel) == category


OPERATORS = {
    "gemm_bf16": "aten::mm, aten::addmm, aten::bmm, aten::mkldnn_convolution, aten::convolution_backward",
    "gemm_fp8": "aten::_scaled_mm",
    "attention": "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "cast": "aten::copy_, aten::_to_copy",
    "elementwise": "aten::native_layer_norm_backward, aten::gelu, aten::mul, aten::add_, aten::sum",
    "optimizer": "aten::_foreach_add_",
    "nccl": "c10d::allreduce_, gloo:all_reduce",
    "copy": "aten::zero_",
    "other": "aten::view, autograd::engine::evaluate_function: AddmmBackward0",
}


@pytest.mark.parametrize(
    ("operator", "category"), [(name, category) for category, names in OPERATORS.items() for name in names.split(", ")]
)
def test_operators_are_told_by_name(operator, category):
    assert categorize(operator, "cpu") == category


PRODUCT = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
FP8_PRODUCT = "nvjet_sm90_qqtst_128x256_64x4_2x1_v_bz_coopA_NTN"
ATTENTION = "flash_fwd_kernel"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def trace(*spans, steps=1, device="cuda"):
    """spans: name, start, end, whether of the optimizer."""
    return Trace(device, steps, tuple(sorted((Span(*span) for span in spans), key=lambda span: span.start_s)))


def test_seconds_are_a_step_and_a_moment_of_two_kernels_belongs_to_the_one_that_started_first():
    profile = breakdown(trace((PRODUCT, 0, 2), (ATTENTION, 3, 4), (PRODUCT, 5, 7), (ATTENTION, 8, 9), steps=2))
    assert profile.by_category == {"gemm_bf16": 2.0, "attention": 1.0}
    assert (profile.busy_s, profile.steps, profile.device) == (3.0, 2, "cuda")
    assert [(k.name, k.category, k.seconds_per_step, k.calls_per_step) for k in profile.kernels] == [
        (PRODUCT, "gemm_bf16", 2.0, 1.0),
        (ATTENTION, "attention", 1.0, 1.0),
    ]
    profile = breakdown(trace((PRODUCT, 0, 10), (ATTENTION, 5, 15), (FP8_PRODUCT, 6, 8)))
    assert profile.by_category == {"gemm_bf16": 10.0, "attention": 5.0, "gemm_fp8": 0.0}
    assert profile.busy_s == 15.0


@pytest.mark.parametrize(
    ("communication", "whole", "exposed"),
    [
        ([(NCCL, 0, 10)], 10.0, 5.0),
        ([(NCCL, 2, 4)], 2.0, 0.0),
        ([(NCCL, 20, 23)], 3.0, 3.0),
        ([(NCCL, 0, 10), (NCCL, 8, 12)], 12.0, 7.0),
        ([(NCCL, 4, 6), (NCCL, 7, 9)], 4.0, 3.0),
    ],
)
def test_communication_yields_to_every_other_kernel_and_is_also_told_whole(communication, whole, exposed):
    profile = breakdown(trace((PRODUCT, 0, 2), (ATTENTION, 2, 5), *communication))
    by_category = {"gemm_bf16": 2.0, "attention": 3.0, "nccl": pytest.approx(exposed)}
    assert profile.by_category == by_category
    assert profile.busy_s == pytest.approx(5.0 + exposed)
    assert (profile.nccl_s, profile.nccl_overlapped_s) == (whole, pytest.approx(whole - exposed))


def test_what_the_optimizer_launched_is_its_own_whatever_its_name():
    multiply = ("void at::native::vectorized_elementwise_kernel<4, MulFunctor>", 0.0, 1.0, True)
    reduced = (NCCL, 2.0, 3.0, True)
    assert breakdown(trace(multiply, reduced)).by_category == {"optimizer": 1.0, "nccl": 1.0}


def test_the_longest_kernels_are_named_and_every_product():
    many = [(f"norm_{place}", 10.0 * place, 10.0 * place + 5) for place in range(LONGEST + 20)]
    short = (FP8_PRODUCT, 9000.0, 9000.001)
    names = [kernel.name for kernel in breakdown(trace(*many, short)).kernels]
    assert len(names) == LONGEST + 1
    assert names[-1] == FP8_PRODUCT


REAL = DATA / "trace-te-fp8.json.gz"
FACTS = {"mode": "te-fp8:delayed", "steps": 1, "device": "cuda", "step_time_s": 0.1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7, "correlation": 1}}


@pytest.fixture
def write(tmp_path):
    """Put something into a file that is named as a trace."""

    def to_file(content):
        path = tmp_path / "trace.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return to_file


def test_a_real_trace_of_a_gpu_zipped_or_not_and_where_its_step_went(write):
    trace = read_trace(REAL)
    assert (trace.device, trace.steps, len(trace.spans)) == ("cuda", 1, 3297)
    starts = [span.start_s for span in trace.spans]
    assert (starts, starts[0]) == (sorted(starts), 0)
    of_optimizer = [span for span in trace.spans if span.in_optimizer]
    assert sum(span.end_s - span.start_s for span in of_optimizer) == pytest.approx(5.25e-3, abs=2e-5)
    assert all("multi_tensor_apply" in span.name or "Mem" in span.name for span in of_optimizer)
    assert read_trace(write(gzip.decompress(REAL.read_bytes()))) == trace
    profile = breakdown(trace)
    assert {category: round(seconds * 1e3, 1) for category, seconds in profile.by_category.items()} == {
        **{"gemm_fp8": 35.2, "elementwise": 26.9, "cast": 15.8, "attention": 11.6, "copy": 7.7},
        **{"optimizer": 5.3, "gemm_bf16": 0.8},
    }
    assert profile.busy_s == pytest.approx(sum(profile.by_category.values()))
    assert (profile.has_fp8_gemm, profile.kernels[0].calls_per_step) == (True, 128)


def test_a_real_trace_of_a_cpu_and_where_its_steps_went():
    trace = read_trace(DATA / "trace-cpu.json.gz")
    assert (trace.device, trace.steps) == ("cpu", 2)
    assert {"aten::mm", "gloo:all_reduce"} <= {span.name for span in trace.spans}
    assert {span.name for span in trace.spans if span.in_optimizer} >= {"aten::add_", "aten::mul_"}
    profile = breakdown(trace)
    assert (profile.device, next(iter(profile.by_category))) == ("cpu", "gemm_bf16")
    assert 0 < profile.by_category["nccl"] < profile.nccl_s < profile.busy_s
    assert profile.busy_s == pytest.approx(sum(profile.by_category.values()))
    assert not profile.has_fp8_gemm


def test_a_replay_has_every_kernel_and_its_optimizer_though_the_host_launched_one_thing(write):
    """The real trace as it would be of one CUDA graph: one launch on the host, no annotation, the same kernels."""
    document = json.loads(gzip.decompress(REAL.read_bytes()))
    on_gpu = [e for e in document["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [{**event, "args": {**event["args"], "correlation": 1}} for event in on_gpu]
    path = write({**document, "traceEvents": [{"ph": "X", **launch(0, 1, name="cudaGraphLaunch")}, *kernels]})
    launched, replay = read_trace(REAL), read_trace(path)
    assert len(replay.spans) == len(launched.spans)
    found, usual = breakdown(replay), breakdown(launched)
    assert found.busy_s == usual.busy_s
    assert {k.name: k.calls_per_step for k in found.kernels} == {k.name: k.calls_per_step for k in usual.kernels}
    # But for what it copies and fills, which has no name of its own.
    assert found.by_category["optimizer"] == pytest.approx(usual.by_category["optimizer"], rel=0.05)


def of(*events, **facts):
    return {"fp8bench": FACTS | facts, "traceEvents": [*events]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (REAL.read_bytes()[:5000], "is not a whole gzip file"),
        ([], "is not a Chrome trace"),
        ({"fp8bench": FACTS}, "is not a Chrome trace"),
        ({"traceEvents": [KERNEL]}, "KeyError('fp8bench')"),
        (of(KERNEL, steps=0), "0 steps on 'cuda'"),
        (of(KERNEL, device="tpu"), "1 steps on 'tpu'"),
        (of(KERNEL) | {"fp8bench": "te-fp8"}, "is no trace as fp8bench makes it"),
        (of(), "no kernel of a GPU was traced"),
        (of(device="cpu"), "no operator was traced"),
        (of({"ph": "X", "cat": "kernel"}), "is no trace as fp8bench makes it"),
        (of("event"), "is no trace as fp8bench makes it"),
        (of(KERNEL | {"ts": "soon"}), "is no trace as fp8bench makes it"),
    ],
)
def test_anything_else_is_refused_in_one_line(write, content, said):
    with pytest.raises(UsageError) as refused:
        read_trace(write(content))
    assert said in refused.value.what
    assert "\n" not in str(refused.value)
    assert "fp8bench run --mode" in refused.value.remedy


def test_a_kept_trace_reads_as_its_source_and_names_no_machine_zipped_or_under_a_plain_name(tmp_path, write):
    source, target = DATA / "trace-cpu.json.gz", tmp_path / "new" / "kept.json.gz"
    assert b"a-machine" in gzip.decompress(source.read_bytes())
    keep_trace(source, target)
    assert not [word for word in (b"a-machine", b"/home/") if word in gzip.decompress(target.read_bytes())]
    assert read_trace(target) == read_trace(source)
    keep_trace(source, tmp_path / "other.json.gz")
    assert (tmp_path / "other.json.gz").read_bytes() == target.read_bytes()
    document = of(KERNEL, {"ph": "M", "name": "process_labels", "args": {"labels": "GPU 0"}})
    keep_trace(write({"host_name": "a-machine", "traceName": "/home/x/t.json", **document}), tmp_path / "kept.json")
    assert json.loads((tmp_path / "kept.json").read_bytes()) == document
    assert read_trace(tmp_path / "kept.json").steps == 1
    with pytest.raises(RunFailed, match="cannot write"):
        keep_trace(REAL, tmp_path / "kept.json" / "kept.json")
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_trace(tmp_path / "none.json")


def event(cat, name, ts, dur, tid=1, **args):
    """An event; times in microseconds, as in a trace."""
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def kernel(name, ts, dur, correlation):
    return event("kernel", name, ts, dur, correlation=correlation, stream=7)


def launch(ts, correlation, cat="cuda_runtime", tid=1, name="cudaLaunchKernel"):
    return event(cat, name, ts, 1, tid, correlation=correlation)


annotation, operator = partial(event, "user_annotation"), partial(event, "cpu_op")
OPTIMIZER = "Optimizer.step#SGD.step"


def by_kind(*events):
    kinds = defaultdict(list)
    for one in events:
        kinds[one["cat"]].append(one)
    return kinds


def own_time(*events):
    """Microseconds of each operator's pieces together."""
    total = defaultdict(float)
    for span in cpu_spans(by_kind(*events)):
        total[span.name] += (span.end_s - span.start_s) * 1e6
    return {name: pytest.approx(time) for name, time in total.items()}


# The kernels run long after the annotation has ended.
LAUNCHES = [launch(90, 1), launch(110, 2), launch(120, 3, cat="cuda_driver", tid=2), launch(160, 4)]


@pytest.mark.parametrize(
    ("name", "launches", "of_optimizer"),
    [
        (OPTIMIZER, LAUNCHES, [False, True, True, False]),
        ("DistributedDataParallel.forward", LAUNCHES, [False] * 4),
        (OPTIMIZER, [], [False] * 4),
    ],
    ids=["by its launch", "another annotation", "launch not traced"],
)
def test_a_kernel_is_the_optimizers_when_it_was_launched_in_its_annotation(name, launches, of_optimizer):
    kernels = (kernel(f"kernel {number}", 1000 + 10 * number, 5, number) for number in (1, 2, 3, 4))
    spans = gpu_spans(by_kind(annotation(name, 100, 50), *launches, *kernels))
    assert [span.in_optimizer for span in spans] == of_optimizer


OWN_TIMES = {
    "nested": (
        [operator("outer", 0, 100), operator("inner", 20, 40), operator("innermost", 30, 10)],
        {"outer": 60, "inner": 30, "innermost": 10},
    ),
    "two threads": ([operator("one", 0, 100), operator("other", 20, 40, tid=2)], {"one": 100, "other": 40}),
    # Rounding may let the inner one end late.
    "late by rounding": ([operator("outer", 0, 100), operator("inner", 50, 50.5)], {"outer": 50, "inner": 50}),
    "gloo beside": ([operator("mm", 0, 100), annotation("gloo:reduce", 50, 100)], {"mm": 100, "gloo:reduce": 100}),
}


@pytest.mark.parametrize(("operators", "times"), OWN_TIMES.values(), ids=OWN_TIMES)
def test_an_operators_own_time_is_without_those_it_calls(operators, times):
    assert own_time(*operators) == times


def test_an_operator_in_pieces_is_counted_once_and_is_the_optimizers_by_its_own_time():
    spans = cpu_spans(by_kind(operator("outer", 0, 100), operator("a", 20, 10), operator("b", 50, 10)))
    names = [("outer", False), ("a", False), ("outer", True), ("b", False), ("outer", True)]
    assert [(span.name, span.continued) for span in spans] == names
    both = operator("aten::linear", 0, 100), operator("aten::addmm", 0, 90)
    assert sum(not span.continued for span in cpu_spans(by_kind(*both)) if span.name == "aten::linear") == 1
    assert own_time(*both) == {"aten::linear": 10, "aten::addmm": 90}
    spans = cpu_spans(by_kind(annotation(OPTIMIZER, 0, 50), operator("inside", 10, 5), operator("after", 60, 5)))
    assert [span.in_optimizer for span in spans] == [True, False]
