"""What a device's time was for: the names of kernels and operators, of real steps and of other GPUs and libraries; and
spans made into seconds a step: each moment once, and communication only where nothing hides it.
"""

import pytest
from steps_of_vit_huge import IN_FP8, MODES, by_category, kernel_rows

from fp8bench.profiling.kernels import LONGEST, Span, Trace, breakdown, categorize

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
