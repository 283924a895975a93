"""What shows, after the last timed step, that what was timed is still what was proved.

The proofs end before timing begins, and a mode, a workload or a loader may do less from then on: keep an output, train
on one sample, let the loss go, hand out smaller batches. Nothing is looked at while steps are timed but the number of
samples of each batch. After the last one, one more step is launched as timed, on a batch that was never trained on, and
the plain model with the same weights computes what it should have found:

  after_loss_error      |l' - l| / the largest of |l| and of the fresh model's loss
  after_gradient_error  |g' - g| / |g|, of all weights together; of no sharded ones, whose gradients are parts: there
                        the plain model computes the loss alone, with one block on the GPU at a time

Every weight that has a gradient must also get one, and must move. The batch is new because a batch that is learned by
heart has next to no gradient.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.rank import Tolerance, WorkloadFacts
from fp8bench.worker.batches import Batches
from fp8bench.worker.execution.blocks import repeated_blocks
from fp8bench.worker.execution.parallel.choose import samples_of
from fp8bench.worker.execution.parallel.shards import local
from fp8bench.worker.execution.proof import MOST, OF_ONE_WEIGHT, SMALL
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, bf16_autocast, gradient_of
from fp8bench.worker.parallel import agreement
from fp8bench.worker.plain_weights import as_plain, by_plain_names, ties, trained_weights
from fp8bench.worker.relative import ratio
from fp8bench.workloads.protocol import Batch, Workload, stated

SHOWN = 3

DIMENSIONS = {"images": 1, "tokens": 2}
"""How many of the first dimensions of a batch's inputs count units."""


def require_work(workload: Workload, facts: WorkloadFacts, batches: Batches, config: RunConfig) -> None:
    """Raise MeasurementInvalid if the batches did not hold the units that are counted for a step."""
    if batches.unlike is not None:
        step, size = batches.unlike
        raise MeasurementInvalid(
            f"{workload.name} gave {size} samples at step {step} where {batches.size} were requested, and these are "
            "counted",
            "Give batches of one size: leave an incomplete last batch out (drop_last)",
            "execution",
        )
    shape = batches.shape
    counts = [math.prod(shape[: number + 1]) // config.tensor_parallel for number in range(len(shape))]
    known = DIMENSIONS.get(facts.unit)
    expected = counts if known is None else counts[known - 1 : known]
    if facts.units_per_step not in expected:
        raise MeasurementInvalid(
            f"{workload.name} counts {facts.units_per_step} {facts.unit} a step, and its batches of {list(shape)} hold "
            f"{' or '.join(map(str, expected))}",
            "Correct units_per_step in the workload's class",
            "execution",
        )


@dataclass(frozen=True)
class Afterwards:
    """What the step after the timed ones showed. gradient_error: None if weights are sharded."""

    loss_error: float
    gradient_error: float | None


def require_still(
    parts: Parts, launch: Launch, config: RunConfig, unseen: Workload, tolerance: Tolerance, fresh_loss: float
) -> Afterwards:
    """Launch one more step and compare it with the plain model's. Every rank calls this. unseen: gives its batches
    without a loader. Raises MeasurementInvalid on every rank if the step no longer does what was proved.
    """
    size, group = samples_of(config, dist.get_rank())
    batch = next(Batches(unseen, size, group + config.world_size, parts.device))
    plain = _on_host(unseen, parts) if parts.strategy.sharded else unseen.build(parts.device)
    _take_weights(parts, plain)
    loss, gradients = _of_plain(parts, plain, batch)
    before = _sums(parts)
    found = float(launch(batch, NO_MARKS).detach())
    now = _sums(parts)
    still = {name for name, then in before.items() if now[name] == then}
    loss_error = ratio(abs(found - loss), max(abs(loss), abs(fresh_loss)))
    faults = []
    if not loss_error <= tolerance.loss:
        faults.append(f"its loss differs by {loss_error:.3g} (at most {tolerance.loss:.3g})")
    gradient_error = None
    if gradients is not None:
        gradient_error, missing, taught = _compared(parts, gradients)
        still &= taught
        bound = min(MOST, OF_ONE_WEIGHT * tolerance.input_gradient)
        if not gradient_error <= bound:
            faults.append(f"its gradients differ by {gradient_error:.3g} (at most {bound:.3g})")
        if missing:
            faults.append(f"{len(missing)} weights get no gradient: {', '.join(missing[:SHOWN])}")
    if config.optimizer != "none" and still and (gradients is not None or len(still) == len(before)):
        faults.append(f"{len(still)} of {len(before)} weights do not move: {', '.join(sorted(still)[:SHOWN])}")
    with agreement():
        if faults:
            raise MeasurementInvalid(
                f"{config.mode_label} after its timed steps no longer computes what was proved: {'; '.join(faults)}",
                "Do not use its speed: the mode, the workload or its batches change while steps are timed",
                "execution",
            )
    return Afterwards(loss_error, gradient_error)


def _on_host(workload: Workload, parts: Parts) -> nn.Module:
    """Return a plain model on the host, whose numbers `_take_weights` gives it. Drawing them there takes minutes."""
    model = workload.build(torch.device("meta"))
    if {name for name, _ in model.named_buffers()} <= {name for name, _ in parts.plain.named_buffers()}:
        return model.to_empty(device="cpu").train()
    return workload.build(torch.device("cpu"))


@torch.no_grad()
def _take_weights(parts: Parts, plain: nn.Module) -> None:
    """Give a plain model the weights and buffers of `parts`. If these are sharded, every rank calls this."""
    into = trained_weights(plain)
    shapes = {name: weight.shape for name, weight in into.items()}
    theirs = trained_weights(parts.plain)
    for tie in ties(parts.mode, parts.plain):
        whole = {name: parts.strategy.whole(name, theirs[name]) for name in tie.trained}
        for name, values in as_plain(tie, whole, shapes).items():
            into[name].copy_(values)
    buffers = dict(parts.plain.named_buffers())
    for name, buffer in plain.named_buffers():
        if name in buffers:
            buffer.copy_(parts.strategy.whole(name, buffers[name]))


def _of_plain(parts: Parts, plain: nn.Module, batch: Batch) -> tuple[float, Mapping[str, Tensor] | None]:
    """Return the plain model's loss, and the mean over ranks of its gradients; no gradients if weights are sharded."""
    piece, size = int(stated(parts.workload, "piece")), len(batch.inputs)
    total = 0.0
    with torch.set_grad_enabled(not parts.strategy.sharded), _on_device_in_turn(plain, parts.device):
        for first in range(0, size, piece):
            part = Batch(*(tensor[first : first + piece] for tensor in batch))
            with bf16_autocast(parts.device):
                loss = parts.workload.loss(plain, part) * (len(part.inputs) / size)
            if loss.requires_grad:
                loss.backward()
            total += float(loss.detach())
    if parts.strategy.sharded:
        return total, None
    gradients = {name: weight.grad for name, weight in trained_weights(plain).items() if weight.grad is not None}
    for gradient in gradients.values():
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return total, gradients


@contextmanager
def _on_device_in_turn(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within the context, let each block of a model on the host be on the device while it runs."""
    if next(model.parameters()).device == device:
        yield
        return
    blocks = list(repeated_blocks(model))
    inside = {id(one) for block in blocks for one in block.parameters()}
    for tensor in (*(one for one in model.parameters() if id(one) not in inside), *model.buffers()):
        tensor.data = tensor.data.to(device)
    with ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_pre_hook(lambda block, _args: block.to(device) and None).remove)
            hooks.callback(block.register_forward_hook(lambda block, _args, _out: block.cpu() and None).remove)
        yield


def _compared(parts: Parts, plain: Mapping[str, Tensor]) -> tuple[float, list[str], set[str]]:
    """Return the error of all gradients together; the weights of the plain model that get none; and the trained weights
    whose gradient is more than rounding.
    """
    shapes = {name: gradient.shape for name, gradient in plain.items()}
    of_model = ties(parts.mode, parts.plain)
    mine = {name: gradient_of(weight) for name, weight in trained_weights(parts.plain).items()}
    found = by_plain_names(of_model, mine, shapes)
    squares = {name: _square(gradient) for name, gradient in plain.items()}
    usual = sum(squares.values()) / max(1, sum(gradient.numel() for gradient in plain.values()))
    taught = {name for name, one in plain.items() if squares[name] > SMALL**2 * usual * one.numel()}
    own = {name: torch.zeros_like(one) for name, one in plain.items()}
    own |= {name: one for name, one in found.items() if one is not None and name in plain}
    apart = sum(_square(own[name].float() - one.float()) for name, one in plain.items())
    missing = [name for name in sorted(taught) if _square(own[name]) < (1 - MOST) ** 2 * squares[name]]
    error = ratio(math.sqrt(apart), math.sqrt(sum(squares.values())))
    return error, missing, {name for tie in of_model if set(tie.plain) <= taught for name in tie.trained}


def _square(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.detach(), dtype=torch.float64)) ** 2


def _sums(parts: Parts) -> dict[str, float]:
    """Return a sum of each weight's elements, as this rank holds them: it changes if the weight moves. Weights of 16
    bits are left out, since a small step may round to none.
    """
    held = {name: local(weight) for name, weight in trained_weights(parts.plain).items()}
    return {name: float(one.double().sum()) for name, one in held.items() if one.dtype == torch.float32 and one.numel()}
