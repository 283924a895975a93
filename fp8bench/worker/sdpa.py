"""Finds which kernels torch's scaled_dot_product_attention took, from the autograd graph of a loss."""

from typing import Any

from torch import Tensor

_SDPA_KERNELS = {
    "ScaledDotProductFlashAttentionForCpu": "flash-cpu",
    "ScaledDotProductFlashAttention": "flash",
    "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductCudnnAttention": "cudnn",
    "ScaledDotProductFusedAttention": "fused",
}
"""Kernels by the name of the autograd node that torch's scaled_dot_product_attention leaves."""


def sdpa_kernels(loss: Tensor) -> frozenset[str]:
    """Return the kernels that torch's scaled_dot_product_attention took, from the autograd graph of `loss`; empty if it
    took none of them (plain GEMMs). torch chooses by shape, dtype and GPU; which kernels are enabled does not show it.
    """
    found: set[str] = set()
    seen: set[Any] = set()
    pending = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name().rpartition("::")[2]
        found.update(short for prefix, short in _SDPA_KERNELS.items() if name.removesuffix("Backward0") == prefix)
        pending.extend(parent for parent, _ in node.next_functions)
    return frozenset(found)
