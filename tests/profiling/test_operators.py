"""Operators of a CPU by name."""

import pytest

from fp8bench.profiling.kernels import categorize


@pytest.mark.parametrize(
    ("operator", "category"),
    [
        ("aten::mm", "gemm_bf16"),
        ("aten::addmm", "gemm_bf16"),
        ("aten::bmm", "gemm_bf16"),
        ("aten::mkldnn_convolution", "gemm_bf16"),
        ("aten::convolution_backward", "gemm_bf16"),
        ("aten::_scaled_mm", "gemm_fp8"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::copy_", "cast"),
        ("aten::_to_copy", "cast"),
        ("aten::native_layer_norm_backward", "elementwise"),
        ("aten::gelu", "elementwise"),
        ("aten::mul", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::sum", "elementwise"),
        ("aten::_foreach_add_", "optimizer"),
        ("c10d::allreduce_", "nccl"),
        ("gloo:all_reduce", "nccl"),
        ("aten::zero_", "copy"),
        ("aten::view", "other"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "other"),
    ],
)
def test_operators_are_told_by_name(operator, category):
    assert categorize(operator, "cpu") == category
