"""Which fp8 GEMMs this torch has for CPUs: 2.11 has one with a scale a tensor, 2.15 all of them."""

import pytest
import torch

from fp8bench.numerics.gemm import multiply as kernels

PUBLIC = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU")


def _takes_rows() -> bool:
    one = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(one, one.t(), torch.ones(16, 1), torch.ones(1, 16), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


ROWS = _takes_rows()
"""Whether the private one takes a scale a row."""

needs_public = pytest.mark.skipif(not PUBLIC, reason="this torch has no public scaled_mm for CPUs")
needs_rows = pytest.mark.skipif(not ROWS, reason="this torch's _scaled_mm takes no scales a row on CPUs")
public = pytest.param(kernels.public_scaled_mm, marks=needs_public)
