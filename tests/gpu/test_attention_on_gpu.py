"""torch's kernels of attention give the gradients of plain products, also where the memory that they take was used."""

import pytest
import torch
from gpu.this_gpu import needs_gpu
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(300)]

HEADS, KEY_HEADS, LENGTH, WIDTH = 32, 8, 2048, 64
TIMES = 40
ROUNDING = 0.02
"""Of bf16, in a gradient as a whole; a wrong one is off by 0.5 and more."""


def used_memory(value: float) -> None:
    """Leave the memory that torch gives next full of a value."""
    kept = [torch.full((2**28,), value, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    del kept


def gradients(samples: int, kernel: SDPBackend) -> list[torch.Tensor]:
    """Of queries, keys and values in the layout of a Llama's projections."""
    torch.manual_seed(0)

    def drawn(heads: int) -> torch.Tensor:
        return torch.randn(samples, LENGTH, heads, WIDTH, device="cuda", dtype=torch.bfloat16)

    query, key, value = (drawn(heads).requires_grad_() for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    into = [one.transpose(1, 2) for one in (query, key, value)]
    shared = kernel != SDPBackend.EFFICIENT_ATTENTION
    if not shared:
        into[1:] = [one.repeat_interleave(HEADS // KEY_HEADS, dim=1) for one in into[1:]]
    with sdpa_kernel(kernel):
        out = nn.functional.scaled_dot_product_attention(*into, is_causal=True, enable_gqa=shared)
        out.backward(drawn(HEADS).transpose(1, 2))
    return [one.grad.float() for one in (query, key, value)]


@pytest.mark.parametrize("garbage", [0.0, 3e4, float("nan")], ids=["zeros", "large", "nan"])
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    "kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
)
def test_a_gradient_does_not_depend_on_what_the_memory_held(kernel, samples, garbage):
    expected = gradients(samples, SDPBackend.MATH)
    for _ in range(TIMES):
        used_memory(garbage)
        for found, wanted in zip(gradients(samples, kernel), expected, strict=True):
            assert (found - wanted).norm() / wanted.norm() < ROUNDING
