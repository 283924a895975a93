"""Tensor parallel: ranks of one host share every layer of a block, and see the same samples.

A layer whose rows are shared (q, k, v, gate, up; timm's qkv and fc1) gives each rank some of its outputs, in complete
heads; a layer whose columns are shared (o, down; proj, fc2) takes them and gives summands, which one collective adds
up. A block needs two such collectives forward and two backward. A plan (`plans`) decides which layers are shared and
how, with DTensors of torch.distributed.tensor.parallel.

A group of N ranks takes the samples of N: `--batch-size` remains samples per GPU and step, so that a step on a number
of GPUs is the same work however they share it. Transformer Engine's layers have their own tensor parallel: see
`own_layers`.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from fp8bench.schema.execution import Join, join_of
from fp8bench.schema.rank import ParallelEvidence
from fp8bench.worker.execution.parallel.plans import plan_for
from fp8bench.worker.execution.parallel.shards import part_of, whole
from fp8bench.worker.execution.parallel.strategy import DATA, TENSOR, Strategy


class TensorParallel(Strategy):
    """Joins ranks by shared layers. mesh: [groups, size] ranks. reason: why they are joined so, for the record."""

    sharded = True
    prepares_sharding = False
    """Whether a mode's `before_sharding` applies: it prepares layers of its library, and these are DTensors."""
    capture_refusal = None
    whole_refusal = "torch.compile takes the layers that ranks share block by block"

    def __init__(self, mesh: DeviceMesh, reason: str) -> None:
        self.mesh = mesh
        self.size = mesh[TENSOR].size()
        self._reason = reason
        self._orders: dict[str, Tensor] = {}
        self._plan = ""

    @property
    def word(self) -> Join:
        return join_of("", self.size)

    def divide(self, model: nn.Module) -> None:
        """Share the layers of the model's blocks. Raises ModeUnavailable if there is no plan for the model, or its
        sizes cannot be divided.
        """
        plan = plan_for(model, self.size)
        self._plan, self._orders = plan.name, plan.orders
        plan.prepare()
        parallelize_module(model, self.mesh[TENSOR], plan.styles)

    def was_sharded(self, model: nn.Module) -> None:
        """Called after FSDP2 has sharded the model's weights: a DTensor knows all of its dimensions."""

    def group(self) -> dist.ProcessGroup | None:
        group: dist.ProcessGroup = self.mesh[DATA].get_group()
        return group

    def replicas(self, weight: Tensor) -> dist.ProcessGroup | None:
        # What FSDP2 alone has sharded has no such dimension.
        placed = isinstance(weight, DTensor) and TENSOR in (weight.device_mesh.mesh_dim_names or ())
        shared = placed and weight.placements[-1].is_shard()  # type: ignore[attr-defined]
        return None if shared else self.mesh[TENSOR].get_group()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        full, order = whole(tensor), self._orders.get(name)
        return full if order is None else full[torch.argsort(order.to(full.device))]

    def part(self, name: str, full: Tensor, like: Tensor) -> Tensor:
        order = self._orders.get(name)
        return part_of(full if order is None else full[order.to(full.device)], like)

    def evidence(self) -> ParallelEvidence:
        notes = (f"layers are shared as in the plan {self._plan!r}",) if self._plan else ()
        return ParallelEvidence(reason=self._reason, tensor_parallel=self.size, notes=notes)
