"""Do bf16 and fp8 matrix products run on the first GPU, and are they right?

The reference is computed in float32 from the very values that were rounded to the narrow type, so what is left between
the two is the output's own rounding to bf16, 2 ** -9, and the order of the sums.
"""

import torch

from fp8bench.doctor.probe_facts import PrecisionFacts

SIDE = 256
FP8_UNITS = (8, 9)
TOLERANCE = 0.02


def look() -> PrecisionFacts:
    """On the GPU that rank 0 would take."""
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    capability = torch.cuda.get_device_capability(device)
    fp8 = capability >= FP8_UNITS
    return PrecisionFacts(
        capability=capability,
        bf16_error=_product_in_bf16(device),
        fp8=fp8,
        fp8_error=_product_in_fp8(device) if fp8 else None,
    )


def _product_in_bf16(device: torch.device) -> str | None:
    try:
        left, right = (torch.randn(SIDE, SIDE, device=device).bfloat16() for _ in range(2))
        return _compared(left @ right.t(), left, right)
    except RuntimeError as error:
        return _first_line(error)


def _product_in_fp8(device: torch.device) -> str | None:
    """What torchao's Float8Linear comes down to: the second operand is column-major, scales are 1."""
    try:
        left, right = (torch.randn(SIDE, SIDE, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=device)
        product = torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return _compared(product, left, right)
    except RuntimeError as error:
        return _first_line(error)


def _compared(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> str | None:
    exact = left.float() @ right.float().t()
    distance = float((product.float() - exact).norm() / exact.norm())
    return None if distance < TOLERANCE else f"the product is off by {distance:.3g} of its norm"


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
