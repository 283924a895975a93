"""Tensor parallel by the arguments of a mode's own library, if its layers are no torch layers for which a DTensor plan
could be made: Transformer Engine's (see `modes.te_parallel`).

Weights are plain tensors, each rank's being its part. When the mode divides the model, it says which part of which
weight a rank has; the proof joins and divides tensors by that. Layers are divided before the parity gate, which
therefore proves them as they are shared, even for a recipe that does not allow a second model in a process. Ranks of a
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
    """Joins ranks by the arguments of a mode's library (see the module)."""

    divides_early = True

    def __init__(self, mesh: DeviceMesh, reason: str, mode: Mode) -> None:
        super().__init__(mesh, reason)
        self._mode = mode
        self._shares: dict[str, Share] | None = None
        self._parts: set[int] = set()

    def divide(self, model: nn.Module) -> None:
        """Let the mode divide the model, once. Raises ModeUnavailable if it cannot."""
        if self._shares is None:
            divide = self._mode.divide  # type: ignore[attr-defined]
            self._shares = divide(model, self.mesh[TENSOR].get_group())
            weights = dict(model.named_parameters())
            self._parts = {id(weights[name]) for name in self._shares if name in weights}

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        """Return the ranks of the group, for a weight that they do not share."""
        return None if id(weight) in self._parts else self.mesh[TENSOR].get_group()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor joined from the ranks' parts. Every rank calls this."""
        return self._share(name).whole(tensor.detach(), self.mesh[TENSOR].get_group())

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part."""
        return self._share(name).part(full, self.mesh[TENSOR].get_local_rank(), self.size)

    def evidence(self) -> ParallelEvidence:
        """Return the evidence, which names the mode."""
        note = f"layers are shared by {self._mode.name}'s own arguments, each rank with a part of the sequence between"
        return ParallelEvidence(reason=self._reason, tensor_parallel=self.size, notes=(note,))

    def _share(self, name: str) -> Share:
        return (self._shares or {}).get(name, WHOLE)
