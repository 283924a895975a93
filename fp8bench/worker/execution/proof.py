"""Proof of what was executed: steps executed as they will be timed against the same steps plainly eager.

The parity gate looks at the model before it is compiled, and at no optimizer. Here, on every rank and from the same
weights, optimizer state, scales and batches, a few steps run twice: plainly (nothing compiled, nothing replayed, no
DDP, gradients averaged by hand), and as executed. Compared are, all relative and without unit,

  loss_error      the worst |l' - l| of any step / the largest of |l| and of the fresh model's loss, which is what the
                  tolerance is a share of. On a batch that is learned by heart the loss falls to next to nothing
                  within a few steps; what rounding does to it does not
  gradient_error  |g' - g| / |g| after the last step, |.| the Euclidean norm over all weights together
  update_error    |u' - u| / |u|, u what the steps made of the weights: w_after - w_before
  state_error     the same of the scales that the mode keeps, each tensor in units of its own norm
  spread          |u_r - mean(u)| / |mean(u)|: how far this rank's weights went from the mean of all ranks'

The first four lie within the mode's tolerance (the loss's; the gradient's for the others). That is wide for fp8, whose
rounding turns on the last bit, and narrow against what it has to find: a step that never came has an update, or a
change of scales, of 0, and so an error of 1; a batch that was never copied in has another gradient altogether. Ranks
that share their gradients stay alike to the last bit, and ranks that forgot to do not.

With a compiled model the plain steps take their batches in pieces, since they may need far more memory; the gate has
shown that samples do not see each other, so that pieces give the same gradients. A mode that keeps scales from step to
step must see the whole batch in one piece, and does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.rank import ExecutedEvidence, Tolerance
from fp8bench.worker.execution.build import uncompiled
from fp8bench.worker.execution.copies import copied, held, size
from fp8bench.worker.execution.step import (
    NO_MARKS,
    Launch,
    Parts,
    Snapshot,
    forward,
    gradients,
    others,
    scales,
    weights,
)
from fp8bench.worker.parallel import agreement, average_gradients
from fp8bench.worker.relative import finite, norm, ratio
from fp8bench.workloads.protocol import Batch, stated

STEPS = 3
"""One would not show a batch that is read again, nor scales that follow from the step before."""

MAX_SPREAD = 1e-4
"""All ranks apply the same gradients to the same weights; the mean of float32 alone rounds."""


class NotProved(ModeUnavailable):
    """There is nothing to compare with."""


@dataclass(frozen=True)
class Expected:
    """What plain steps came to. piece: samples that they took at once; losses: one a step; gradients: of
    the last; the rest: after it.
    """

    piece: int
    losses: list[float]
    gradients: list[Tensor]
    weights: list[Tensor]
    scales: list[Tensor]


Errors = dict[str, float | None]
"""Of the steps as executed against the plain ones, by the name in the evidence; see above. state_error: None without
scales."""


def piece_size(parts: Parts, batch: Batch, compiled: bool) -> int:
    """How many samples plain steps take at once."""
    size = len(batch.inputs)
    return size if scales(parts) or not compiled else min(stated(parts.workload, "piece"), size)


def copies_size(parts: Parts) -> int:
    """Bytes of all that a proof keeps beside a step: a snapshot, and what plain steps came to."""
    trained, kept = size(weights(parts)), size(scales(parts))
    return trained + size(others(parts)) + kept + 2 * trained + kept


def copies_held(before: Snapshot, plain: Expected, device: torch.device) -> int:
    """Bytes of it that are on the GPU."""
    kept = (before.weights, before.others, before.scales, plain.gradients, plain.weights, plain.scales)
    return sum(held(tensors, device) for tensors in kept)


def plain_steps(parts: Parts, batches: Sequence[Batch], piece: int, place: torch.device) -> Expected:
    """The reference: no part of it is compiled, replayed or joined. place: where its results are kept. Raises NotProved
    on every rank where the memory of one does not suffice.
    """
    with uncompiled():
        losses = [_plain_step(parts, batch, piece) for batch in batches]
    return Expected(
        piece=piece,
        losses=[loss.item() for loss in losses],
        gradients=copied(gradients(parts), place),
        weights=copied(weights(parts), place),
        scales=copied(scales(parts), place),
    )


def executed_steps(launch: Launch, batches: Sequence[Batch]) -> list[float]:
    """The same steps as they will be timed: their losses; the rest is left where it lies."""
    return [loss.item() for loss in [launch(batch, NO_MARKS).clone() for batch in batches]]


def compare(parts: Parts, before: Snapshot, plain: Expected, losses: Sequence[float], fresh_loss: float) -> Errors:
    """Compare what is in `parts` now, after the steps as executed, with what was expected. Every rank calls it.

    fresh_loss: the plain model's before any step, as the gate saw it. A number that is not finite stays so, and passes
    no limit.
    """
    update, spread, gradient = _Share(), _Share(), _Share()
    for start, one, other in zip(before.weights, plain.weights, weights(parts), strict=True):
        begun = _double(start, parts)
        expected, found = _double(one, parts) - begun, _double(other, parts) - begun
        mean = found.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        update.add(found - expected, expected)
        spread.add(found - mean, mean)
    for one, other in zip(plain.gradients, gradients(parts), strict=True):
        expected = _double(one, parts)
        gradient.add(_double(other, parts) - expected, expected)
    return {
        "loss_error": loss_error(plain.losses, losses, fresh_loss),
        "gradient_error": gradient.value,
        "update_error": update.value,
        "state_error": _state_error(parts, before.scales, plain.scales),
        "spread": spread.value,
    }


def loss_error(plain: Sequence[float], executed: Sequence[float], fresh: float) -> float:
    """Of the losses of some steps, executed and plain, from one start; see above. NaN where one is not finite."""
    apart = [abs(b - a) for a, b in zip(plain, executed, strict=True)]
    return math.nan if not all(map(math.isfinite, apart)) else ratio(max(apart), max(map(abs, (*plain, fresh))))


def complaint(errors: Errors, tolerance: Tolerance) -> str | None:
    """What of it is beyond the mode's limits, or None. A number that is not finite is beyond any."""
    limits = {
        "loss_error": ("its losses differ", tolerance.loss),
        "gradient_error": ("its gradients differ", tolerance.input_gradient),
        "update_error": ("what it makes of the weights differs", tolerance.input_gradient),
        "state_error": ("what it makes of fp8's scales differs", tolerance.input_gradient),
        "spread": ("its ranks' weights move apart", MAX_SPREAD),
    }
    found = [(*limits[name], error) for name, error in errors.items() if error is not None]
    faults = [f"{what} by {error:.3g} (at most {limit:g})" for what, limit, error in found if not error <= limit]
    return "; ".join(faults) or None


def to_evidence(errors: Errors, piece: int) -> ExecutedEvidence:
    """For the record. piece: samples that the plain steps took at once."""
    found = {name: None if error is None else finite(error) for name, error in errors.items()}
    return ExecutedEvidence(steps=STEPS, batch_size=piece, **found)


def _plain_step(parts: Parts, batch: Batch, piece: int) -> Tensor:
    with agreement():
        try:
            loss = _forward_and_backward(parts, batch, piece)
        except torch.OutOfMemoryError as error:
            raise NotProved(
                "memory does not suffice to compare the steps as executed with the same steps plainly eager",
                "Lower --batch-size, or use --cuda-graphs off",
                "oom",
            ) from error
    average_gradients(parts.plain)
    parts.optimizer.step()
    return loss


def _forward_and_backward(parts: Parts, batch: Batch, piece: int) -> Tensor:
    parts.optimizer.zero_grad(set_to_none=True)
    size = len(batch.inputs)
    total = torch.zeros((), device=parts.device)
    for first in range(0, size, piece):
        part = Batch(*(tensor[first : first + piece] for tensor in batch))
        loss = forward(parts, parts.plain, part) * (len(part.inputs) / size)
        loss.backward()
        total += loss.detach()
    return total


def _state_error(parts: Parts, before: Sequence[Tensor], plain: Sequence[Tensor]) -> float | None:
    if not before:
        return None
    state = _Share()
    for start, one, other in zip(before, plain, scales(parts), strict=True):
        expected = _double(one, parts)
        size = expected.norm().clamp(min=torch.finfo(torch.float64).tiny)
        state.add((_double(other, parts) - expected) / size, (expected - _double(start, parts)) / size)
    return state.value


class _Share:
    """|difference| / |whole| over many tensors, by Euclidean norms. NaN where the whole alone is zero."""

    def __init__(self) -> None:
        self.apart = 0.0
        self.whole = 0.0

    def add(self, difference: Tensor, whole: Tensor) -> None:
        self.apart = math.hypot(self.apart, norm(difference))
        self.whole = math.hypot(self.whole, norm(whole))

    @property
    def value(self) -> float:
        return 0.0 if self.apart == 0 else ratio(self.apart, self.whole)


def _double(values: Tensor, parts: Parts) -> Tensor:
    return values.detach().to(parts.device, torch.float64)
