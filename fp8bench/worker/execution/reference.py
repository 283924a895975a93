"""Provides the model on which the plain steps of a proof run, if the model itself is sharded.

It is a second model that is not joined: built by the workload and converted by the mode as the first one was, with the
weights, optimizer state and scales that the ranks of the first hold together. So its results do not depend on sharding.
All of it must fit in a GPU's memory next to the first model. If it does not fit, or if the mode cannot have two models
in one process, the sharded model is its own reference, run plainly: not compiled, its batch in pieces. The evidence
says which (`ExecutedEvidence.reference`); the latter cannot show that gradients are shared.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import stated
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.rank import Reference
from fp8bench.worker.execution.copies import SPARE
from fp8bench.worker.execution.optimizers import make_optimizer
from fp8bench.worker.execution.parallel.ddp import DDP
from fp8bench.worker.execution.parallel.shards import whole
from fp8bench.worker.execution.step import Parts, forward, scales, trained
from fp8bench.worker.memory import kept_bytes
from fp8bench.worker.parallel import agreement, largest
from fp8bench.workloads.protocol import Batch


class NotProved(ModeUnavailable):
    """Raised when there is nothing to compare with."""


def reference_of(parts: Parts, optimizer: OptimizerName, compiled: bool, batch: Batch) -> tuple[Parts, Reference]:
    """Return the parts to run plain steps on, from the state of `parts`. Every rank calls it. batch: like the steps'.

    Raises NotProved on every rank if there is nothing but the same steps again.
    """
    if not parts.strategy.sharded:
        return parts, "whole model"
    if can_have_twin(parts, optimizer, compiled):
        return _twin(parts, optimizer, batch), "whole model"
    return parts, "sharded model"


def can_have_twin(parts: Parts, optimizer: OptimizerName, compiled: bool) -> bool:
    """Return whether a sharded model can be compared with a second one. Every rank calls it.

    Raises NotProved on every rank if it cannot, and there is nothing else to compare its steps with.
    """
    refusal: str | None = stated(parts.mode, "twin_refusal") or _no_room(parts, optimizer)
    if refusal is not None and not (compiled or parts.accumulation > 1 or parts.checkpoints.blocks):
        raise NotProved(
            f"the sharded steps have nothing to be compared with: {refusal}",
            "Compare a smaller workload under the same options",
            "oom",
        )
    return refusal is None


def whole_bytes(parts: Parts, optimizer: OptimizerName) -> int:
    """Return the bytes of a second model with its gradients and optimizer state; 0 if there will be none."""
    if not parts.strategy.sharded:
        return 0
    return kept_bytes(sum(parts.strategy.elements(*named) for named in trained(parts).items()), optimizer)


def _no_room(parts: Parts, optimizer: OptimizerName) -> str | None:
    if parts.device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(parts.device)[0]
    needed = int(SPARE * whole_bytes(parts, optimizer))
    missing = largest(needed - free, parts.device)
    return None if missing <= 0 else f"the whole model does not fit next to it, {missing / 2**30:.1f} GiB are missing"


def _twin(parts: Parts, optimizer: OptimizerName, batch: Batch) -> Parts:
    mode = copy(parts.mode)
    model = mode.convert(parts.workload.build(parts.device))
    twin = replace(
        parts,
        model=model,
        wrapped=model,
        plain=model,
        optimizer=make_optimizer(optimizer, model.parameters(), parts.device),
        mode=mode,
        strategy=DDP(),
        accumulation=1,
    )
    with torch.no_grad():
        for other, mine in zip(_state_of_model(twin), _state_of_model(parts), strict=True):
            other.copy_(mine)
        _copy_optimizer(parts, twin)
        _copy_scales(parts, twin, batch)
    return twin


def _state_of_model(parts: Parts) -> Iterator[Tensor]:
    """Yield weights and buffers, complete, rows in the plain model's order. If sharded, every rank calls this."""
    for name, tensor in (*parts.plain.named_parameters(), *parts.plain.named_buffers()):
        yield parts.strategy.whole(name, tensor)


def held_part(parts: Parts, name: str, like: nn.Parameter, full: Tensor) -> Tensor:
    """Return what this rank holds of a complete tensor of the plain model, shaped like the weight of that name."""
    return parts.strategy.part(name, full, like)


def _copy_optimizer(parts: Parts, twin: Parts) -> None:
    mine, others = trained(parts), trained(twin)
    for name, weight in mine.items():
        state = parts.optimizer.state.get(weight)
        if state:
            twin.optimizer.state[others[name]] = {key: _copied(parts, name, value) for key, value in state.items()}


def _copied(parts: Parts, name: str, value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    return (whole(value) if value.ndim == 0 else parts.strategy.whole(name, value)).clone()


def _copy_scales(parts: Parts, twin: Parts, batch: Batch) -> None:
    mine = scales(parts)
    if mine and len(scales(twin)) != len(mine):
        # Some modes create their state in the first forward pass.
        forward(twin, twin.plain, batch)
    others = scales(twin)
    with agreement():
        if len(others) != len(mine):
            raise NotProved("a second model keeps other scales than the first", "Use --parallel ddp")
    for other, scale in zip(others, mine, strict=True):
        other.copy_(scale)
