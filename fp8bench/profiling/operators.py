"""What an operator of torch is for on a CPU, told by its name.

A CPU has no kernels to trace, only operators, which call one another: their own time, without that of those they call,
takes the kernels' place. Names say what is computed and not in which type. A product is therefore `gemm_bf16`, which is
what every mode but the float32 ones multiplies in; a product is only in fp8 where the operator is (`aten::_scaled_mm`).
Nothing about fp8 is concluded from a CPU's times: there is no fp8 in it, only its emulation.

What does no arithmetic (views, allocation, autograd's bookkeeping) is `other`: its time is the dispatcher's.
"""

import re
from functools import lru_cache

from fp8bench.schema.profile import Category

PATTERNS: tuple[tuple[str, Category], ...] = (
    (r"^(?:c10d|gloo|nccl|mpi)::?|^gloo:|^_c10d_functional", "nccl"),
    (r"scaled_dot_product|_flash_attention|_efficient_attention|flex_attention", "attention"),
    (r"::_scaled_(?:grouped_)?mm", "gemm_fp8"),
    (r"::(?:mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|_?linear_pointwise)(?:$|\.|_)", "gemm_bf16"),
    (r"convolution|conv[123]d|mkldnn_linear|mkldnn::", "gemm_bf16"),
    # Under autocast a copy between types; a copy that keeps its type has the same name.
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
"""Pattern (searched for anywhere in the name) and what it means; the first that fits decides."""

_COMPILED = tuple((re.compile(pattern), category) for pattern, category in PATTERNS)


@lru_cache(maxsize=4096)
def categorize(name: str) -> Category:
    """The category of an operator of that name; `other` if it computes nothing, or no pattern knows it."""
    return next((category for pattern, category in _COMPILED if pattern.search(name)), "other")
