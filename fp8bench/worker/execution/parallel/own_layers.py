"""Tensor parallel by the arguments of a mode's own library, where its layers are no torch layers for which a DTensor
plan could be made: Transformer Engine's (see `modes.te_parallel`).

Weights are plain tensors, each rank's its part. What a rank has of which weight the mode says when it divides the
model, and by that they are put together, and taken apart, for the proof. Layers are divided before the parity gate,
which so proves them as they are shared, and for a recipe too of which a process cannot have a second model. Ranks of a
group see the same batch there.
"""

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fp8bench.modes.protocol import Mode
from fp8bench.modes.te_parallel import WHOLE, Share
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.parallel.strategy import TENSOR
from fp8bench.worker.execution.parallel.tensor import TensorParallel


class OwnTensorParallel(TensorParallel):
    """See the module."""

    divides_early = True

    def __init__(self, mesh: DeviceMesh, reason: str, mode: Mode) -> None:
        super().__init__(mesh, reason)
        self._mode = mode
        self._shares: dict[str, Share] | None = None
        self._parts: set[int] = set()

    def divide(self, model: nn.Module) -> None:
        """By the mode, once. Raises ModeUnavailable where it cannot."""
        if self._shares is None:
            divide = self._mode.divide  # type: ignore[attr-defined]
            self._shares = divide(model, self.mesh[TENSOR].get_group())
            weights = dict(model.named_parameters())
            self._parts = {id(weights[name]) for name in self._shares if name in weights}

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """The ranks of the group, for a weight that they do not share."""
        return None if id(weight) in self._parts else self.mesh[TENSOR].get_group()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Of the parts that ranks have. Every rank calls it."""
        return self._share(name).whole(tensor.detach(), self.mesh[TENSOR].get_group())

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """This rank's."""
        return self._share(name).part(full, self.mesh[TENSOR].get_local_rank(), self.size)

    def evidence(self) -> ParallelEvidence:
        """Whose arguments they were."""
        note = f"layers are shared by {self._mode.name}'s own arguments, each rank with a part of the sequence between"
        return ParallelEvidence(reason=self._reason, tensor_parallel=self.size, notes=(note,))

    def _share(self, name: str) -> Share:
        return (self._shares or {}).get(name, WHOLE)
