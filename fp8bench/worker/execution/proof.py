"""Proof of what was executed: compares steps executed as they will be timed with the same steps in plain eager mode.

The parity gate looks at the model before it is compiled, and at no optimizer. Here, on every rank and from the same
weights, optimizer state, scales and batches, a few steps run twice: plainly (nothing compiled, replayed, joined or
recomputed, gradients averaged by hand), and as executed. If weights are sharded, plain steps are those of a second,
complete model (`reference`), and each rank compares the part that it holds; the errors are over all parts. These errors
are measured, all relative and without unit:

  loss_error      the worst |l' - l| of any step / the largest of |l| and of the fresh model's loss, to which the
                  tolerance refers. On a batch that is learned by heart the loss falls to next to nothing within a few
                  steps, but the effect of rounding on it does not
  gradient_error  |g' - g| / |g| after the last step, |.| the Euclidean norm over all weights together
  update_error    |u' - u| / |u|, u being the change of the weights by the steps: w_after - w_before
  state_error     the same for the scales that the mode keeps, each tensor in units of its own norm
  spread          |u_r - mean(u)| / |mean(u)|: how far this rank's weights went from the mean over all ranks that hold
                  the same weights
  unshared        for sharded gradients, <g' - g, d> / <d, d>, d being the difference between a rank's own gradient and
                  the mean g of all: 0 if gradients were shared, 1 if each rank kept its own. Rounding has no such
                  direction, so this is seen even if fp8's rounding is as large as d

The first four must be within the bounds on steps (`rounding.of_steps`: the loss's; the gradient's for the others). They
are wide for fp8, whose rounding depends on the last bit, and narrow compared with the faults that they must find: a
step that never came has an update, or a change of scales, of 0, and so an error of 1; a batch that was never copied in
has a completely different gradient. Ranks that share their gradients stay equal to the last bit; ranks that failed to
share them do not.

With a compiled model, or one that is sharded, checkpointed or takes its batch in micro-batches, the plain steps take
their batches in pieces, because they may need far more memory; the gate has shown that samples do not see each other,
so pieces give the same gradients. A mode that keeps scales from step to step must see in one piece what it sees in one
piece as executed, the complete batch or each micro-batch, and does. On a CPU, which has the memory, the plain steps of
a step that takes its batch at once take it at once too: torch's layer norm adds up 16-bit gradients of its bias in 16
bits there, and rounds more the more samples it takes (7 % of the gradient for 2,048 tokens).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fp8bench.schema.rank import ExecutedEvidence, Reference, Tolerance
from fp8bench.stats.length import PROOF_STEPS
from fp8bench.worker.execution.build import uncompiled
from fp8bench.worker.execution.copies import copied, held, size
from fp8bench.worker.execution.reference import NotProved, held_part
from fp8bench.worker.execution.step import (
    NO_MARKS,
    Launch,
    Parts,
    Snapshot,
    backward,
    forward,
    gradients,
    others,
    scales,
    trained,
    update,
    weights,
)
from fp8bench.worker.parallel import agreement, average_gradients
from fp8bench.worker.relative import finite, norm, ratio
from fp8bench.workloads.protocol import Batch, stated

MAX_SPREAD = 1e-4
"""All ranks apply the same gradients to the same weights; only the float32 mean rounds."""


MAX_UNSHARED = 0.1


@dataclass(frozen=True)
class Expected:
    """The results of plain steps; of weights and gradients, what this rank holds. piece: samples taken at once. losses:
    one per step. gradients: of the last step. own: the same before they were averaged over ranks, if weights are
    sharded among several. The rest: after the last step. of: the model of the plain steps.
    """

    piece: int
    losses: list[float]
    gradients: list[Tensor]
    weights: list[Tensor]
    scales: list[Tensor]
    own: list[Tensor] | None = None
    of: Reference = "whole model"


Errors = dict[str, float | None]
"""Errors of the executed steps against the plain ones, by the name in the evidence (see the module). state_error: None
without scales.
"""


def piece_size(parts: Parts, batch: Batch, compiled: bool) -> int:
    """Return how many samples plain steps take at once."""
    size = len(batch.inputs)
    # The value of a loss scale does not depend on the piece.
    if scales(parts) and getattr(parts.mode, "loss_scaling", None) is None:
        return size // parts.accumulation
    at_once = parts.plainly_eager or (parts.device.type == "cpu" and parts.accumulation == 1)
    return size if at_once and not compiled else min(stated(parts.workload, "piece"), size)


def copies_size(parts: Parts) -> int:
    """Return the bytes that a proof keeps next to a step: a snapshot, and the results of the plain steps."""
    of_weights, kept = size(weights(parts)), size(scales(parts))
    expected = (3 if parts.strategy.sharded else 2) * of_weights + kept
    return of_weights + size(others(parts)) + kept + expected


def copies_held(before: Snapshot, plain: Expected, device: torch.device) -> int:
    """Return the bytes of a proof's copies that are on the GPU."""
    expected = (plain.gradients, plain.weights, plain.scales, plain.own or [])
    kept = (before.weights, before.others, before.scales, *expected)
    return sum(held(tensors, device) for tensors in kept)


def plain_steps(
    parts: Parts,
    batches: Sequence[Batch],
    piece: int,
    place: torch.device,
    plain: tuple[Parts, Reference] | None = None,
) -> Expected:
    """Run the steps with which those of `parts` are compared: nothing in them is compiled or replayed. plain: what to
    run them on; None for `parts`, not joined. place: where the results are kept. Raises NotProved on every rank if the
    memory of one does not suffice.
    """
    reference, of = plain or (parts, "whole model")
    twin = reference is not parts
    own: list[Tensor] | None = None
    with uncompiled(), parts.checkpoints.off():
        losses = []
        for number, batch in enumerate(batches, 1):
            losses.append(_forward_and_backward_all(reference, batch, piece))
            if not reference.strategy.sharded:
                if twin and number == len(batches) and dist.get_world_size(parts.strategy.group()) > 1:
                    own = copied(_held(parts, reference, gradients(reference)), place)
                average_gradients(reference.plain, parts.strategy.group())
            update(reference)
    return Expected(
        piece=piece,
        losses=[loss.item() for loss in losses],
        gradients=copied(_held(parts, reference, gradients(reference)), place),
        weights=copied(_held(parts, reference, weights(reference)), place),
        scales=copied(scales(reference), place),
        own=own,
        of=of,
    )


def _held(parts: Parts, reference: Parts, tensors: list[Tensor]) -> list[Tensor]:
    """Return what this rank holds of the tensors under `parts`."""
    if reference is parts:
        return tensors
    return [held_part(parts, *named, full) for named, full in zip(trained(parts).items(), tensors, strict=True)]


def executed_steps(launch: Launch, batches: Sequence[Batch]) -> list[float]:
    """Run the same steps as they will be timed and return their losses; other results stay in place."""
    return [loss.item() for loss in [launch(batch, NO_MARKS).clone() for batch in batches]]


def compare(parts: Parts, before: Snapshot, plain: Expected, losses: Sequence[float], fresh_loss: float) -> Errors:
    """Compare what is in `parts` now, after the steps as executed, with what was expected. Every rank calls this.

    fresh_loss: the plain model's before any step, as the gate saw it. A number that is not finite stays so, and passes
    no limit.
    """
    change, spread, gradient = _Share(), _Share(), _Share()
    whose = trained(parts).values()
    for weight, start, one, other in zip(whose, before.weights, plain.weights, weights(parts), strict=True):
        begun = _double(start, parts)
        expected, found = _double(one, parts) - begun, _double(other, parts) - begun
        change.add(found - expected, expected)
        if (group := parts.strategy.replicas(weight)) is not None:
            mean = found.clone()
            dist.all_reduce(mean, group=group)
            mean /= dist.get_world_size(group)
            spread.add(found - mean, mean)
    found_gradients = gradients(parts)
    for one, other in zip(plain.gradients, found_gradients, strict=True):
        expected = _double(one, parts)
        gradient.add(_double(other, parts) - expected, expected)
    if parts.strategy.sharded:
        for share in (change, gradient):
            share.over_ranks(parts.device)
    return {
        "loss_error": loss_error(plain.losses, losses, fresh_loss),
        "gradient_error": gradient.value,
        "update_error": change.value,
        "state_error": _state_error(parts, before.scales, plain.scales),
        "spread": spread.value if spread.added else None,
        "unshared": None if plain.own is None else _unshared(parts, plain.gradients, plain.own, found_gradients),
    }


def _unshared(parts: Parts, mean: Sequence[Tensor], own: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    sums = torch.zeros(2, dtype=torch.float64, device=parts.device)
    for shared, alone, executed in zip(mean, own, found, strict=True):
        expected = _double(shared, parts)
        apart = _double(alone, parts) - expected
        sums += torch.stack([((_double(executed, parts) - expected) * apart).sum(), (apart * apart).sum()])
    dist.all_reduce(sums)
    along, of = sums.tolist()
    # Ranks whose own gradients are equal have nothing to forget.
    return 0.0 if of == 0 else abs(along / of)


def loss_error(plain: Sequence[float], executed: Sequence[float], fresh: float) -> float:
    """Return the error of the losses of executed and plain steps (see the module); NaN if one is not finite."""
    apart = [abs(b - a) for a, b in zip(plain, executed, strict=True)]
    return math.nan if not all(map(math.isfinite, apart)) else ratio(max(apart), max(map(abs, (*plain, fresh))))


def complaint(errors: Errors, tolerance: Tolerance) -> str | None:
    """Return what exceeds the mode's limits, or None. A number that is not finite exceeds any limit."""
    limits = {
        "loss_error": ("its losses differ", tolerance.loss),
        "gradient_error": ("its gradients differ", tolerance.input_gradient),
        "update_error": ("what it makes of the weights differs", tolerance.input_gradient),
        "state_error": ("what it makes of fp8's scales differs", tolerance.input_gradient),
        "spread": ("its ranks' weights move apart", MAX_SPREAD),
        "unshared": ("its ranks keep gradients of their own, which differ from the mean", MAX_UNSHARED),
    }
    found = [(*limits[name], error) for name, error in errors.items() if error is not None]
    faults = [f"{what} by {error:.3g} (at most {limit:.3g})" for what, limit, error in found if not error <= limit]
    return "; ".join(faults) or None


def to_evidence(errors: Errors, plain: Expected, tolerance: Tolerance) -> ExecutedEvidence:
    """Return the evidence for the record. tolerance: as in `complaint`."""
    found = {name: None if error is None else finite(error) for name, error in errors.items()}
    return ExecutedEvidence(
        steps=PROOF_STEPS, batch_size=plain.piece, reference=plain.of, bound=tolerance.input_gradient, **found
    )


def _forward_and_backward_all(parts: Parts, batch: Batch, piece: int) -> Tensor:
    """Run forward and backward on every rank, or refuse on every rank."""
    if parts.strategy.sharded:
        # Others wait in a collective for a rank that is out of memory: that ends the run.
        return _forward_and_backward(parts, batch, piece)
    with agreement():
        try:
            return _forward_and_backward(parts, batch, piece)
        except torch.OutOfMemoryError as error:
            raise NotProved(
                "memory does not suffice to compare the steps as executed with the same steps plainly eager",
                "Lower --batch-size, or use --cuda-graphs off",
                "oom",
            ) from error
    raise AssertionError("an agreement refuses on every rank")


def _forward_and_backward(parts: Parts, batch: Batch, piece: int) -> Tensor:
    parts.optimizer.zero_grad(set_to_none=True)
    size = len(batch.inputs)
    total = torch.zeros((), device=parts.device)
    for first in range(0, size, piece):
        part = Batch(*(tensor[first : first + piece] for tensor in batch))
        with parts.strategy.sharing(parts.plain, last=first + piece >= size):
            loss = forward(parts, parts.plain, part, first=first == 0) * (len(part.inputs) / size)
            backward(parts, loss)
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
    """|difference| / |whole| over many tensors, by Euclidean norms. NaN if only the whole is zero."""

    def __init__(self) -> None:
        self.apart = 0.0
        self.whole = 0.0
        self.added = 0

    def add(self, difference: Tensor, whole: Tensor) -> None:
        self.added += 1
        self.apart = math.hypot(self.apart, norm(difference))
        self.whole = math.hypot(self.whole, norm(whole))

    def over_ranks(self, device: torch.device) -> None:
        """Combine this with the parts of all ranks. Every rank calls this."""
        squares = torch.tensor([self.apart**2, self.whole**2], dtype=torch.float64, device=device)
        dist.all_reduce(squares)
        self.apart, self.whole = squares.sqrt().tolist()

    @property
    def value(self) -> float:
        return 0.0 if self.apart == 0 else ratio(self.apart, self.whole)


def _double(values: Tensor, parts: Parts) -> Tensor:
    return values.detach().to(parts.device, torch.float64)
