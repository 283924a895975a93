"""FSDP2 (torch.distributed.fsdp.fully_shard): every rank holds a part of each weight, of its gradient and of the
optimizer's state. A block's weights are gathered while it runs, forward and again backward, and freed after it.

As in torchtitan, sharding goes block by block, then to the root with the rest; weights are gathered in bf16 (float32
for a mode that trains in it), gradients reduced in float32, and the parts that the optimizer trains stay float32. Rank
0's weights are sent to all ranks before they are cut, as DDP does: ranks on different GPUs draw different weights for a
seed. torchao's tensorwise recipe gathers in float8, with scales that one all-reduce after each step computes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.execution import Join, join_of
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.checkpointing import repeated_blocks
from fp8bench.worker.execution.parallel.strategy import DATA, Strategy, mesh_of, whole


class FSDP(Strategy):
    """Joins ranks with FSDP2. reason: why, for the record. tensor: what is below it, if ranks share layers."""

    sharded = True
    capture_refusal = (
        "FSDP2 gathers weights on streams of its own and frees them after each block, and steps that do so are not "
        "known to be captured right"
    )
    whole_refusal = "FSDP2 gathers the weights of each block outside of it, which cuts a graph of the whole model"

    def __init__(self, reason: str, tensor: Strategy | None = None) -> None:
        self._tensor = tensor or Strategy()
        self.size, self.divides_early = self._tensor.size, self._tensor.divides_early
        self._evidence = ParallelEvidence(reason=reason)

    @property
    def word(self) -> Join:
        return join_of("fsdp", self.size)

    def divide(self, model: nn.Module) -> None:
        self._tensor.divide(model)

    def join(self, model: nn.Module, mode: Mode, device: torch.device) -> nn.Module:
        mesh = (self._tensor.mesh or mesh_of(1, device))[DATA]
        group = self.group()
        first = 0 if group is None else dist.get_process_group_ranks(group)[0]
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach(), first, group)
        before, notes = getattr(mode, "before_sharding", None), tuple(stated(mode, "sharding_notes"))
        if before is not None and not self._tensor.prepares_sharding:
            before, notes = None, (*notes, "weights of layers that ranks share are not gathered in float8")
        float8 = before is not None and bool(before(model))
        gathered: str | None = stated(mode, "gathered_dtype")
        policy = MixedPrecisionPolicy(
            param_dtype=getattr(torch, gathered) if gathered else None, reduce_dtype=torch.float32 if gathered else None
        )
        blocks = list(repeated_blocks(model))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        self._tensor.was_sharded(model)
        self._evidence = ParallelEvidence(
            reason=self._evidence.reason,
            sharded_blocks=len(blocks),
            gathered_dtype="float8_e4m3fn" if float8 else (gathered or "float32"),
            reduced_dtype="float32",
            resharded_after_forward=True,
            notes=notes,
        )
        return model

    def sharing(self, joined: nn.Module, last: bool) -> AbstractContextManager[object]:
        return _synced(joined, last) if isinstance(joined, FSDPModule) else nullcontext()

    def group(self) -> dist.ProcessGroup | None:
        return self._tensor.group()

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        return None if self.size == 1 else self._tensor.replicas(weight)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return self._tensor.whole(name, whole(tensor))

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        return self._tensor.part(name, full, like)

    def elements(self, name: str, weight: Tensor) -> int:
        return self._tensor.elements(name, weight)

    def evidence(self) -> ParallelEvidence:
        if self.size == 1:
            return self._evidence
        notes = (*self._tensor.evidence().notes, *self._evidence.notes)
        return self._evidence.model_copy(update={"tensor_parallel": self.size, "notes": notes})


@contextmanager
def _synced(model: FSDPModule, last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(last)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
