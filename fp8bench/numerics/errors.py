"""How far a tensor is from the reference. All are taken in float64 over all elements at once.

relative_error  |found - reference| / |reference|, |.| the Euclidean norm. e4m3 rounds a value by up to 1/16 of it, and
                normal values by 0.026 in this norm (e5m2: 0.053); a product of two of them is off by the root of the
                sum of the squares, 0.037, and a sum of many products of either sign by no more and no less.
sqnr_db         -20 log10(relative_error), the signal-to-quantisation-noise ratio in decibels: infinite for no error.
                A bit of mantissa is worth 6.
cosine          found . reference / (|found| |reference|): blind to a wrong size, which an optimizer like Adam is too.
max_abs_error   the largest |found - reference|.
rounding_error  the relative error of the reference itself when rounded to the narrowest of bfloat16 and float32 that
                holds every found value. bfloat16's is about 1.7e-3: no result in bfloat16 can be nearer than that.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Errors:
    """See the module. sqnr_db is inf where there is no error at all; cosine is nan where a tensor is all zero."""

    relative_error: float
    sqnr_db: float
    cosine: float
    max_abs_error: float
    held_in: str
    rounding_error: float


def errors(found: Tensor, reference: Tensor) -> Errors:
    """found: any dtype and shape; reference: float64, of that shape. A reference of zeros gives nan or inf."""
    exact, other = reference.double().flatten(), found.detach().double().flatten()
    whole = float(exact.norm())
    relative = _ratio(float((other - exact).norm()), whole)
    held_in = narrowest(found)
    rounded = exact.to(held_in).double()
    return Errors(
        relative_error=relative,
        sqnr_db=sqnr_db(relative),
        cosine=_ratio(float(other @ exact), float(other.norm()) * whole),
        max_abs_error=float((other - exact).abs().max()),
        held_in=str(held_in).removeprefix("torch."),
        rounding_error=_ratio(float((rounded - exact).norm()), whole),
    )


def sqnr_db(relative_error: float) -> float:
    """-20 log10 of it; inf for 0."""
    return math.inf if relative_error == 0 else -20 * math.log10(relative_error)


def narrowest(values: Tensor) -> torch.dtype:
    """bfloat16 where every value is one of its, else float32.

    A gradient of a float32 weight is given as float32 though it was computed in bfloat16; its values tell.
    """
    values = values.detach()
    return torch.bfloat16 if torch.equal(values.to(torch.bfloat16).to(values.dtype), values) else torch.float32


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return math.nan if part == 0 else math.inf
    return part / whole
