"""Tensor parallel by the arguments of a mode's own library, if its layers are no torch layers for which a DTensor plan
could be made: Transformer Engine's (see `modes.te_parallel`).

Weights are plain tensors, each rank's being its part. When the mode divides the model, it says which part of which
weight a rank has; the proof joins and divides tensors by that. Layers are divided before the parity gate, which
therefore proves them as they are shared, even for a recipe that does not allow a second model in a process. Ranks of a
group see the same batch there.

If each rank computes a summand of a weight's gradient, the summands are added on arrival, before accumulation. Several
groups are joined by FSDP2, which replaces every weight by a sharded one, and its hooks with it: summands are then added
after each reduction over the groups.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fp8bench.modes.protocol import Mode
from fp8bench.modes.te_parallel import WHOLE, Share
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.parallel.shards import local, part_of
from fp8bench.worker.execution.parallel.strategy import TENSOR
from fp8bench.worker.execution.parallel.tensor import TensorParallel


class OwnTensorParallel(TensorParallel):
    """Joins ranks by the arguments of a mode's library (see the module)."""

    prepares_sharding = True

    def __init__(self, mesh: DeviceMesh, reason: str, mode: Mode) -> None:
        super().__init__(mesh, reason)
        self._mode = mode
        self._shares: dict[str, Share] | None = None
        self._parts: set[int] = set()

    @property
    def divides_early(self) -> bool:
        return True

    def divide(self, model: nn.Module) -> None:
        if self._shares is None:
            divide = self._mode.divide  # type: ignore[attr-defined]
            self._shares = divide(model, self._ranks)
            for weight in self._find(model):
                weight.register_hook(summed_over(self._ranks))

    def was_sharded(self, model: nn.Module) -> None:
        for weight in self._find(model):
            weight.register_post_accumulate_grad_hook(sum_of_part_over(self._ranks))

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        return None if id(weight) in self._parts else self._ranks

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return self._share(name).whole(tensor.detach(), self._ranks)

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        return part_of(self._share(name).part(full, self.mesh[TENSOR].get_local_rank(), self.size), like)

    def elements(self, name: str, weight: Tensor) -> int:
        return weight.numel() * (1 if self._share(name).dim is None else self.size)

    def evidence(self) -> ParallelEvidence:
        note = f"layers are shared by {self._mode.name}'s own arguments, each rank with a part of the sequence between"
        return ParallelEvidence(reason=self._reason, tensor_parallel=self.size, notes=(note,))

    @property
    def _ranks(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = self.mesh[TENSOR].get_group()
        return group

    def _share(self, name: str) -> Share:
        return (self._shares or {}).get(name, WHOLE)

    def _find(self, model: nn.Module) -> Iterator[nn.Parameter]:
        weights = dict(model.named_parameters())
        self._parts = {id(weight) for name, weight in weights.items() if self._share(name).dim is not None}
        return (weight for name, weight in weights.items() if self._share(name).summed)


def summed_over(group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """Return a hook that replaces a weight's gradient by the sum over the group."""

    def hook(gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    return hook


def sum_of_part_over(group: dist.ProcessGroup) -> Callable[[Tensor], None]:
    """Return a hook that sums this rank's part of a sharded weight's gradient over the group, in place."""

    def hook(weight: Tensor) -> None:
        assert weight.grad is not None
        dist.all_reduce(local(weight.grad), group=group)

    return hook
