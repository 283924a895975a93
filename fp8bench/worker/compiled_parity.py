"""The parity gate's other half: what torch.compile made of a model computes what the model does.

The gate looks at the model before it is compiled. Here, after the timed steps and without touching them, one training
batch goes through the compiled model and through the same model uncompiled, with the same weights. Compared are

  logits_error           as in the gate (`parity.logits_error`)
  weight_gradient_error  |g' - g| / |g|, |.| the Euclidean norm over all weights together

and not the gradient at the input: to ask for it would have the model compiled anew, and another program would be proved
than the one that was timed. The bounds are the mode's own, of the logits and of the input's gradient: a compiler keeps
float32 where eager torch rounds to bf16 between two operations, and fp8 rounds some of that to its next value, so that
float8 compiled lies about as far from float8 eager as from bf16 (ViT-Micro, emulated: logits 0.13 from either).

The uncompiled pass takes the batch in pieces, since it may need far more memory than the compiled one. The gate has
shown that samples do not see each other, so pieces give the same logits and, weighted, the same gradients; but for the
scales of fp8, which are one for a whole tensor. Each rank compares its own: gradients are not reduced.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fp8bench.schema.record import Tolerance
from fp8bench.worker.loop import Training, bf16_autocast
from fp8bench.worker.parity import BATCH_SIZE, logits_error, observed, relative_error
from fp8bench.workloads.protocol import Batch

NOT_COMPARED = "memory did not suffice to compare the compiled model with the same model uncompiled"


@dataclass(frozen=True)
class CompiledErrors:
    """Of the compiled model against the same model uncompiled; relative, without unit."""

    logits: float
    weight_gradient: float


def compiled_errors(training: Training, uncompiled: nn.Module) -> CompiledErrors | None:
    """training: goes on to its next batch; no weight changes, and no gradient is left behind. uncompiled: the model
    that was compiled, whose weights are the same.

    None where the GPU's memory does not suffice for a second set of gradients.
    """
    batch = next(training.batches)
    try:
        uncompiled.zero_grad(set_to_none=True)
        logits = _in_pieces(training, uncompiled, batch)
        gradients = _take_gradients(uncompiled)
        compiled_logits = _compiled(training, batch)
        compiled_gradients = _take_gradients(uncompiled)
        return CompiledErrors(logits_error(logits, compiled_logits), relative_error(gradients, compiled_gradients))
    except torch.OutOfMemoryError:
        uncompiled.zero_grad(set_to_none=True)
        return None


def complaint(errors: CompiledErrors, tolerance: Tolerance) -> str | None:
    """What of it is beyond the mode's bounds, or None. A number that is not finite is beyond any."""
    faults = []
    if not errors.logits <= tolerance.logits:
        faults.append(f"its logits differ by {errors.logits:.3g} (at most {tolerance.logits:g})")
    if not errors.weight_gradient <= tolerance.input_gradient:
        faults.append(
            f"its weights' gradients differ by {errors.weight_gradient:.3g} (at most {tolerance.input_gradient:g})"
        )
    return "; ".join(faults) or None


def _in_pieces(training: Training, model: nn.Module, batch: Batch) -> Tensor:
    """The logits; gradients of the mean loss over the whole batch gather at the weights."""
    size = len(batch.inputs)
    found = []
    for start in range(0, size, BATCH_SIZE):
        piece = Batch(*(part[start : start + BATCH_SIZE] for part in batch))
        with bf16_autocast(training.device), training.mode.forward_context():
            logits, loss = observed(model, training.workload, piece)
        (loss * (len(piece.inputs) / size)).backward()
        found.append(logits.detach().float())
    return torch.cat(found)


def _compiled(training: Training, batch: Batch) -> Tensor:
    assert isinstance(training.model, DistributedDataParallel)
    with training.model.no_sync():
        with bf16_autocast(training.device), training.mode.forward_context():
            logits, loss = observed(training.model, training.workload, batch)
        loss.backward()
    return logits.detach().float()


def _take_gradients(model: nn.Module) -> list[Tensor]:
    """Each weight's, zero where none came; the weights are left without."""
    taken = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]
    model.zero_grad(set_to_none=True)
    return taken
