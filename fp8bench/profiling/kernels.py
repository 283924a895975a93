"""What a device's time was for: the purpose of each kernel by its name, and a trace's seconds per step by purpose.

A kernel that casts to fp8 and does other work too is a `cast` with all its time; a norm or an activation that merely
writes fp8 instead of bf16 is `elementwise`, because bf16 pays for it too. So compare the two together (see `causes`).
Sources: cuBLAS names the types of its Hopper and Blackwell GEMMs by letters (nvjet_sm90_qrtst: A e4m3, B e5m2, C
bf16, computed in float32; tst: bf16 throughout; hsh: half), its older ones in words (sm89_xmma_gemm_e4m3bf16_...);
torch's copies are in aten/src/ATen/native/cuda/Copy.cu; triton kernels list the operators that they were fused from.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal

from fp8bench.profiling.trace import Span, Trace
from fp8bench.schema.rank import GEMMS, Category, KernelTime, Profile

LONGEST = 40
"""How many kernels a profile names. For ViT-Huge, each of the others is below a thousandth of a step."""

NANOSECONDS = 9

_VIEWS = (
    "_unsafe_view|view|t|transpose|permute|clone|expand|slice|select|squeeze|unsqueeze|stack|cat|as_strided"
    "|split|split_with_sizes|unbind|_scaled_dot_product_[a-z]+_attention|_scaled_dot_product_[a-z]+_attention_backward"
)
_TRITON = "^triton_(?:poi|red|per)_fused"
_PRODUCT = (
    "nvjet_|gemm|gemv|xmma|cutlass.*(?:tensorop|simt|conv|ReduceSplitK|device_kernel)|splitKreduce|convolve|winograd"
    "|[wd]grad|dot_kernel"
)
_FP8 = r"e4m3|e5m2|fp8|float8|f8f8|nvjet_(?:sm\d+[a-z]?_)?[qr]"
_16_BIT = r"bf16|bfloat|[fp]16|half|16816|161616|(?<![a-z])h\d*gemm|nvjet_(?:sm\d+[a-z]?_)?[th]"
_32_BIT = r"float|f32|sgemm|s1688|simt|nvjet_(?:sm\d+[a-z]?_)?s"

KERNELS: tuple[tuple[str, Category], ...] = (
    # Communication first: its names contain the type that is added up (AllReduce_Sum_bf16), which would mislead below.
    (r"^nccl|ncclDevKernel|ncclKernel", "nccl"),
    # Triton: a kernel's name lists every operator around it, including GEMMs and attention, which it does not compute
    # itself unless it is made from a template (tem).
    (r"^triton_tem_.*flex_attention", "attention"),
    (r"^triton_tem_.*_scaled_(?:grouped_)?mm", "gemm_fp8"),
    (r"^triton_tem_.*(?:mm|convolution)", "gemm_bf16"),
    # foreach: the loops of a compiled optimizer over all its tensors.
    (r"^triton_for_fused", "optimizer"),
    # torchao: scale, clamp to fp8's range, cast; and the largest absolute value, from which the scale is computed.
    (rf"{_TRITON}_.*(?:_scaled_mm|clamp.*reciprocal|reciprocal.*clamp|abs_(?:.*_)?a?max)", "cast"),
    # Only a change of type, with any views: autocast's copies of the weights.
    (rf"{_TRITON}(?=.*__to_copy)(?:_(?:_to_copy|{_VIEWS}))+_\d+$", "cast"),
    (rf"{_TRITON}(?:_(?:{_VIEWS}))+_\d+$", "copy"),
    (r"^triton_", "elementwise"),
    # Transformer Engine: casts with and without transpose, gelu's backward or bias sums (CTDBias...) fused into them,
    # transposes of fp8 values, largest values and scales, block scales and their layout.
    (r"cast_transpose|CTDBias|(?<![a-z])transpose_(?:optimized|general)_kernel", "cast"),
    (r"cast_(?:fp8|mxfp8|nvfp4|gated)|quantize_|dequantize|block_scaled_|swizzle_(?:row|col)", "cast"),
    (r"amax|compute_scale|scale_update|update_scale|ComputeScale", "cast"),
    (r"transformer_engine::unary_kernel<.*identity", "cast"),
    # torch: a functor named after the type it writes, or a copy that loads with a cast. A copy that is `nocast`, or
    # vectorized, keeps its type and changes only the layout: it is with the copies below.
    (r"float\w*_copy_kernel", "cast"),
    (r"unrolled_elementwise_kernel<[^<]*direct_copy_kernel(?!.*LoadWithoutCast)", "cast"),
    (r"gpu_kernel_impl<[^<]*direct_copy_kernel", "cast"),
    # Attention before GEMMs, because its kernels are also named cutlass and wgmma. cuDNN's backward is three kernels;
    # compute_dot_do_o and convert_dq are the small ones.
    (r"(?i)sdpa|flash|fmha|attention|attn|dot_do_o|convert_dq|efficient", "attention"),
    # GEMMs by the type of their operands. A convolution counts as one: the patches of a ViT are embedded by one.
    (rf"^(?=.*(?:{_PRODUCT})).*(?:{_FP8})", "gemm_fp8"),
    (rf"^(?=.*(?:{_PRODUCT})).*(?:{_16_BIT})", "gemm_bf16"),
    (rf"^(?=.*(?:{_PRODUCT})).*(?:{_32_BIT})", "gemm_fp32"),
    # The optimizer, if no annotation identifies it: torch's and Transformer Engine's loops over lists of tensors.
    (r"multi_tensor|FusedAdam|fused_adam|fused_sgd", "optimizer"),
    # Copies: memory to memory, fills, concatenation, and changes of layout for a convolution.
    (r"^(?i:memcpy|memset)|FillFunctor|CatArrayBatchedCopy|direct_copy_kernel|copy_device_to_device", "copy"),
    (r"(?i)nchwToNhwc|nhwcToNchw|nhwcAddPadding|batchTranspose|nhwc2nchw|nchw2nhwc", "copy"),
    # Norms, activations, sums of bias gradients, softmax, the loss, and all remaining kernels of torch: each reads its
    # tensors once and computes little.
    (r"normalization|norm_|_norm|layer_norm|GammaBeta|softmax|dbias|Bgrad|gelu|activation|unary_kernel", "elementwise"),
    (r"at::native|elementwise|reduce_kernel|vectorized|transformer_engine::|dropout", "elementwise"),
)
"""Pattern (searched for anywhere in the name) and category; the first match decides."""

OPERATORS: tuple[tuple[str, Category], ...] = (
    (r"^(?:c10d|gloo|nccl|mpi)::?|^gloo:|^_c10d_functional", "nccl"),
    (r"scaled_dot_product|_flash_attention|_efficient_attention|flex_attention", "attention"),
    (r"::_scaled_(?:grouped_)?mm", "gemm_fp8"),
    (r"::(?:mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|_?linear_pointwise)(?:$|\.|_)", "gemm_bf16"),
    (r"convolution|conv[123]d|mkldnn_linear|mkldnn::", "gemm_bf16"),
    # Under autocast, a copy between types; a copy that keeps its type has the same name.
    (r"::(?:_to_copy|to|copy_|_copy_from|type_as)$|quantize|::(?:amax|aminmax)$", "cast"),
    (r"::_foreach_|::_fused_(?:sgd|adam|adamw|adagrad)", "optimizer"),
    (r"::(?:fill_|zero_|zeros|zeros_like|ones|ones_like|full|cat|_cat|stack|clone|contiguous|resize_)$", "copy"),
    (r"reducer::copy_bucket", "copy"),
    (
        r"norm|gelu|relu|silu|sigmoid|tanh|softmax|dropout|nll_loss|cross_entropy|embedding|threshold|reducer::mul",
        "elementwise",
    ),
    (
        r"::(?:add|sub|rsub|mul|div|sum|mean|max|min|abs|neg|exp|log|sqrt|rsqrt|pow|reciprocal|clamp|where|maximum"
        r"|minimum|addcmul|addcdiv|lerp|sgn|sign|eq|ne|lt|gt|le|ge|index|index_select|gather|scatter|randn|rand"
        r"|randint|normal|uniform|random|randperm|arange|isfinite|isneginf|all|any|argmax|bernoulli|square|clamp_min|clamp_max)_?$",
        "elementwise",
    ),
)

_PATTERNS = {
    device: [(re.compile(pattern, re.DOTALL), category) for pattern, category in patterns]
    for device, patterns in (("cuda", KERNELS), ("cpu", OPERATORS))
}


@lru_cache(maxsize=4096)
def categorize(name: str, device: Literal["cuda", "cpu"] = "cuda") -> Category:
    """Return the category of a GPU's kernel (or memcpy, memset) or a CPU's operator; `other` if no pattern matches."""
    return next((category for pattern, category in _PATTERNS[device] if pattern.search(name)), "other")


def breakdown(trace: Trace) -> Profile:
    """Return seconds per step, averaged over the trace's steps.

    Every moment is counted once, by the kernel that started first. Communication yields to every other, so `nccl`
    is what it really adds to a step. The seconds of single kernels include hidden time. The optimizer's kernels are
    those of its annotation, whatever their names.
    """
    device, steps = trace.device, trace.steps

    def per_step(total_s: float) -> float:
        return max(0.0, round(total_s / steps, NANOSECONDS))

    spans: list[tuple[Span, Category]] = []
    for span in trace.spans:
        category = categorize(span.name, device)
        spans.append((span, "optimizer" if span.in_optimizer and category != "nccl" else category))
    others = [(span, category) for span, category in spans if category != "nccl"]
    communication = [(span, category) for span, category in spans if category == "nccl"]
    seconds: dict[Category, float] = defaultdict(float)
    for category, share in _first_come(others):
        seconds[category] += share
    if communication:
        seconds["nccl"] = _covered(spans) - _covered(others)
    by_category = {category: per_step(total) for category, total in seconds.items()}
    of_kernel: dict[tuple[str, Category], list[Span]] = defaultdict(list)
    for span, category in spans:
        of_kernel[span.name, category].append(span)
    total_s = {key: sum(span.duration_s for span in of) for key, of in of_kernel.items()}
    longest = sorted(total_s, key=lambda key: (-total_s[key], key))
    return Profile(
        device=device,
        steps=steps,
        busy_s=round(sum(by_category.values()), NANOSECONDS),
        by_category=dict(sorted(by_category.items(), key=lambda item: -item[1])),
        nccl_s=per_step(_covered(communication)),
        kernels=tuple(
            KernelTime(
                name=name,
                category=category,
                seconds_per_step=per_step(total_s[name, category]),
                calls_per_step=sum(not span.continued for span in of_kernel[name, category]) / steps,
            )
            for rank, (name, category) in enumerate(longest)
            if rank < LONGEST or category in GEMMS
        ),
    )


def _first_come(spans: Iterable[tuple[Span, Category]]) -> Iterator[tuple[Category, float]]:
    """Yield each span's time that no earlier span has taken. spans: in order of start."""
    taken = float("-inf")
    for span, category in spans:
        yield category, max(0.0, span.end_s - max(span.start_s, taken))
        taken = max(taken, span.end_s)


def _covered(spans: Iterable[tuple[Span, Category]]) -> float:
    return sum(share for _, share in _first_come(spans))
