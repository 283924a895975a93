"""Relative errors of tensors and numbers, as every proof of this room takes them."""

import math
from collections.abc import Sequence

from torch import Tensor


def relative_error(plain: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """|other - plain| / |plain| over all tensors together; NaN where plain is zero. Same shapes, in the same order."""
    apart = math.hypot(*(norm(b - a) for a, b in zip(plain, other, strict=True)))
    return ratio(apart, math.hypot(*map(norm, plain)))


def norm(values: Tensor) -> float:
    """Euclidean, in float64."""
    return float(values.double().norm())


def ratio(part: float, whole: float) -> float:
    """NaN where the whole is zero."""
    return part / whole if whole > 0 else math.nan


def finite(value: float) -> float | None:
    """For a record: null where it is not finite."""
    return value if math.isfinite(value) else None


def logits_error(plain: Tensor, other: Tensor) -> float:
    """logits: [batch, ...]. The larger of the error of all, and of what the input makes of them (see above)."""
    errors = relative_error([plain], [other]), relative_error([centred(plain)], [centred(other)])
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def centred(logits: Tensor) -> Tensor:
    """Without what all samples have in common."""
    return logits - logits.mean(0, keepdim=True)
