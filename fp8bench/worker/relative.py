"""Relative errors of tensors and numbers, as all proofs of this package compute them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def relative_error(plain: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return |other - plain| / |plain| over all tensors; NaN if plain is zero. Same shapes, in the same order."""
    apart = math.hypot(*(norm(b - a) for a, b in zip(plain, other, strict=True)))
    return ratio(apart, math.hypot(*map(norm, plain)))


def norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.detach(), dtype=torch.float64))


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def finite(value: float) -> float | None:
    """Return the value for a record: None if it is not finite."""
    return value if math.isfinite(value) else None


def logits_error(plain: Tensor, other: Tensor) -> float:
    """Return the larger error, of [batch, ...] logits or of what the input contributes (see `worker.parity`)."""
    errors = relative_error([plain], [other]), relative_error([centred(plain)], [centred(other)])
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(0, keepdim=True)
