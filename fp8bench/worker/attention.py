"""Which attention kernel torch's scaled_dot_product_attention really took, read off the autograd graph.

torch chooses by shape, dtype and GPU; asking which kernels are enabled does not say which one ran. The backward node
does.
"""

from typing import Any

from torch import Tensor

_KERNELS = {
    "ScaledDotProductFlashAttentionForCpu": "flash-cpu",
    "ScaledDotProductFlashAttention": "flash",
    "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductCudnnAttention": "cudnn",
    "ScaledDotProductFusedAttention": "fused",
}


def sdpa_kernels(loss: Tensor) -> frozenset[str]:
    """Short names of the kernels under `loss`; empty where attention took none of them (plain matrix products)."""
    found: set[str] = set()
    seen: set[Any] = set()
    pending = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name().rpartition("::")[2]
        found.update(short for prefix, short in _KERNELS.items() if name.removesuffix("Backward0") == prefix)
        pending.extend(parent for parent, _ in node.next_functions)
    return frozenset(found)
